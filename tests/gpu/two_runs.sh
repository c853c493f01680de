# Sourced by scripts that compare two runs on the GPU bit by bit; their arguments: SINTER RECIPE.toml WORK_FOLDER
# [section.key=value ...]. STEPS in the environment: how long a run is (default 40); a checkpoint is written half way.
set -euo pipefail
sinter=$1 recipe=$2 work=$3
shift 3
steps=${STEPS:-40}
rm -rf "$work"
mkdir -p "$work"
keys=(train.deterministic=true train.steps="$steps" checkpoint.every=$((steps / 2)) checkpoint.keep=3 "$@")
status=0

train() {  # FOLDER [section.key=value ...]
  "$sinter" train "$recipe" -q "${keys[@]}" checkpoint.dir="$work/$1" "${@:2}"
}
middle_of() {  # FOLDER
  echo "$work/$1/step-$(printf %08d $((steps / 2)))"
}
# The last STEPS steps' numbers; times differ and are left out.
losses() {  # FOLDER STEPS
  grep -o '"step":[0-9]*\|"[a-z_]*loss":[0-9.e-]*\|"grad_norm":[0-9.e-]*' "$work/$1/metrics.jsonl" | tail -n $((3 * $2))
}
# Weights, optimizer state, losses and gradient norms; sets status to 1 where they differ.
compare() {  # FOLDER FOLDER STEPS
  for file in model.safetensors state/rank-00000.safetensors; do
    if cmp "$work/$1/latest/$file" "$work/$2/latest/$file"; then
      echo "same bits: $file of $1 and $2"
    else
      echo "DIFFERENT: $file of $1 and $2"
      status=1
    fi
  done
  if diff <(losses "$1" "$3") <(losses "$2" "$3") > "$work/losses.diff"; then
    echo "same losses and gradient norms in $3 steps of $1 and $2"
  else
    echo "DIFFERENT losses in $1 and $2:"
    head "$work/losses.diff"
    status=1
  fi
}
