#!/usr/bin/env bash
# The loss curve of recipes/gpt2-124m.toml beside PyTorch's, from the same weights and the same batches, on one GPU.
#
# Usage: bench/loss_curve.sh SINTER TRAIN.tok VALIDATION.tok OUT_FOLDER [section.key=value ...]
#
# Needs PyTorch (PYTHON: the interpreter that has it; TORCH_FLAGS: flags of torch_loss_curve.py). Prints the times, validation losses and the largest relative difference; fails above 1 %.
set -euo pipefail
sinter=$1 train=$2 validation=$3 out=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
recipe=$here/../recipes/gpt2-124m.toml
mkdir -p "$out"
keys=("data.sources=$train" "data.validation=$validation" "checkpoint.dir=$out/run" checkpoint.initial=true
      checkpoint.export=f32 "$@")
"$sinter" train "$recipe" "${keys[@]}" --print-recipe > "$out/recipe.toml"
"$sinter" data batches "$recipe" "${keys[@]}" -o "$out/batches.safetensors"
"$sinter" data batches "$recipe" "${keys[@]}" --validation -o "$out/validation.safetensors"
"$sinter" train "$recipe" "${keys[@]}"
python=${PYTHON:-python3}
"$python" "$here/torch_loss_curve.py" "$out/run/step-00000000" "$out/batches.safetensors" "$out/recipe.toml" \
  "$out/torch.jsonl" --validation "$out/validation.safetensors" ${TORCH_FLAGS:-}
"$python" "$here/compare_curves.py" "$out/run/metrics.jsonl" "$out/torch.jsonl"
