#!/usr/bin/env bash
# A run on the GPU that is resumed mid-way ends with the same bits as the unbroken one: weights, optimizer state, losses.
#
# Usage: tests/gpu/resume.sh SINTER RECIPE.toml WORK_FOLDER [section.key=value ...]
set -euo pipefail
sinter=$1 recipe=$2 work=$3
shift 3
steps=${STEPS:-40}
rm -rf "$work"
mkdir -p "$work"
keys=(train.deterministic=true train.steps="$steps" checkpoint.every=$((steps / 2)) checkpoint.keep=3 "$@")
"$sinter" train "$recipe" -q "${keys[@]}" checkpoint.dir="$work/whole"
middle=$work/whole/step-$(printf %08d $((steps / 2)))
"$sinter" train "$recipe" -q "${keys[@]}" checkpoint.dir="$work/resumed" checkpoint.resume="$middle"
# The metrics' times differ; everything else is compared.
losses() { grep -o '"step":[0-9]*\|"loss":[0-9.e-]*\|"grad_norm":[0-9.e-]*' "$1" | tail -n $((3 * steps / 2)); }
status=0
for file in model.safetensors state/rank-00000.safetensors; do
  if cmp "$work/whole/latest/$file" "$work/resumed/latest/$file"; then
    echo "same bits: $file"
  else
    echo "DIFFERENT: $file"
    status=1
  fi
done
if diff <(losses "$work/whole/metrics.jsonl") <(losses "$work/resumed/metrics.jsonl") > "$work/losses.diff"; then
  echo "same losses and gradient norms in $((steps / 2)) steps"
else
  echo "DIFFERENT losses:"
  head "$work/losses.diff"
  status=1
fi
exit $status
