#!/usr/bin/env bash
# A run on the GPU whose passes are replayed as CUDA graphs ends with the same bits as one without them, and so does a
# run without them that is resumed mid-way with them; validation comes in between. The second half compares kernels
# that were chosen by measuring, the first the libraries' first choices.
#
# Usage: tests/gpu/graphs.sh SINTER RECIPE.toml WORK_FOLDER [section.key=value ...]
source "$(dirname "$0")/two_runs.sh"
keys=(log.eval_every=$((steps / 4)) "${keys[@]}")
SINTER_DETERMINISTIC=1 train plain train.cuda_graphs=off
SINTER_DETERMINISTIC=1 train graphs train.cuda_graphs=on
compare plain graphs "$steps"
train measured train.cuda_graphs=off
train resumed train.cuda_graphs=on checkpoint.resume="$(middle_of measured)"
compare measured resumed $((steps / 2))
exit $status
