#!/usr/bin/env bash
# A run on the GPU that is resumed mid-way ends with the same bits as the unbroken one: weights, optimizer state, losses.
#
# Usage: tests/gpu/resume.sh SINTER RECIPE.toml WORK_FOLDER [section.key=value ...]
source "$(dirname "$0")/two_runs.sh"
train whole
train resumed checkpoint.resume="$(middle_of whole)"
compare whole resumed $((steps / 2))
exit $status
