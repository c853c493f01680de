# Drives the steps that bench takes in turns with another program; args: program, scratch folder.
set -euo pipefail
sinter=$1; scratch=$2
rm -rf "$scratch"; mkdir -p "$scratch"

# A line for a line: "ready", then the milliseconds of two steps.
printf '\n\n' | "$sinter" bench train_step --turns fp32x1 > "$scratch/steps"
[ "$(sed -n 1p "$scratch/steps")" = ready ]
[ "$(wc -l < "$scratch/steps")" = 3 ]
for line in 2 3; do sed -n ${line}p "$scratch/steps" | grep -Eqx '[0-9]+\.[0-9]'; done

refuses() { # WORD ARGUMENTS...: a usage error that has the word in it
  local word=$1 status=0; shift
  "$sinter" bench "$@" < /dev/null 2> "$scratch/error" || status=$?
  [ $status = 2 ] && grep -qF -- "$word" "$scratch/error" || { echo "bench $*: status $status: $(cat "$scratch/error")"; exit 1; }
}
refuses bf16x1024 train_step --turns ''
refuses --json train_step --turns bf16x8 --json
refuses bf16y train_step --turns bf16y
refuses fp64x8 train_step --turns fp64x8
refuses bf16x0 train_step --turns bf16x0
refuses bf16x1025 train_step --turns bf16x1025
refuses train_step matmul --turns bf16x8
refuses train_step --turns bf16x8
