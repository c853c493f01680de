#!/usr/bin/env bash
# A run on the GPU whose passes are replayed as CUDA graphs ends with the same bits as one without them, and so does a
# run without them that is resumed mid-way with them; validation comes in between. The second half compares kernels
# that were chosen by measuring, the first the libraries' first choices.
#
# Usage: tests/gpu/graphs.sh SINTER RECIPE.toml WORK_FOLDER [section.key=value ...]
set -euo pipefail
sinter=$1 recipe=$2 work=$3
shift 3
steps=${STEPS:-40}
rm -rf "$work"
mkdir -p "$work"
keys=(train.deterministic=true train.steps="$steps" checkpoint.every=$((steps / 2)) checkpoint.keep=3
      log.eval_every=$((steps / 4)) "$@")
train() { "$sinter" train "$recipe" -q "${keys[@]}" checkpoint.dir="$work/$1" train.cuda_graphs="$2" "${@:3}"; }
losses() { grep -o '"step":[0-9]*\|"[a-z_]*loss":[0-9.e-]*\|"grad_norm":[0-9.e-]*' "$1" | tail -n "$2"; }
status=0
compare() {  # FOLDER FOLDER STEPS
  for file in model.safetensors state/rank-00000.safetensors; do
    if cmp "$work/$1/latest/$file" "$work/$2/latest/$file"; then
      echo "same bits: $file of $1 and $2"
    else
      echo "DIFFERENT: $file of $1 and $2"
      status=1
    fi
  done
  if diff <(losses "$work/$1/metrics.jsonl" $((3 * $3))) <(losses "$work/$2/metrics.jsonl" $((3 * $3))) > "$work/diff"; then
    echo "same losses and gradient norms in $1 and $2"
  else
    echo "DIFFERENT losses in $1 and $2:"
    head "$work/diff"
    status=1
  fi
}
SINTER_DETERMINISTIC=1 train plain off
SINTER_DETERMINISTIC=1 train graphs on
compare plain graphs "$steps"
train measured off
train resumed on checkpoint.resume="$work/measured/step-$(printf %08d $((steps / 2)))"
compare measured resumed $((steps / 2))
exit $status
