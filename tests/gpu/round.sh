#!/usr/bin/env bash
# Everything that is to be shown on one GPU, step by step, each with a time limit; a step that fails stops nothing.
#
#   MPI=1 PACK=gpu.tar.xz tests/gpu/bundle.sh build-cuda gpu-bundle sinter test_cuda test_engine test_train    # where they are built
#   tests/gpu/round.sh gpu-bundle out check     # on the GPU's machine: is it right?     about 9 minutes at most
#   tests/gpu/round.sh gpu-bundle out speed     # is it fast?                             about 9 minutes at most
#   tests/gpu/round.sh gpu-bundle out list      # the steps, with their limits in seconds
#   tests/gpu/round.sh gpu-bundle out run STEP...    # these alone
#
# The bundle is a folder, or a .tar.xz of one (unpacked below OUT/programs). Steps run from the repository's folder.
# OUT gets PART.log with everything in order, summary-PART.txt with a line a step, and steps/STEP.log and .json;
# PART-steps.tar.gz holds the latter again in one file.
#
# Environment: SECONDS_LEFT  of the part as a whole (default 560); what would begin later is named and left out
#              JOBS          steps at a time (default 4 in check, else 1: speeds want the machine for themselves)
#              MODEL         a small trained model's folder, for divergences of fp8 (steps kl_*; left out without)
#              TEXT          text for them (default data/stories/valid.txt)
#              DEVICE        cuda; cpu tries the steps that run there too
#              MPIRUN        how two ranks are started (default mpirun); without one the steps ranks_* are left out
set -uo pipefail
[ $# -ge 3 ] || { sed -n '2,19p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
bundle=$(realpath "$1") out=$2 part=$3
shift 3
mkdir -p "$out/steps"
out=$(cd "$out" && pwd)
cd "$root"
if [ -f "$bundle" ]; then
  mkdir -p "$out/programs"
  tar xf "$bundle" -C "$out/programs" 2> /dev/null || python3 -m tarfile -e "$bundle" "$out/programs"
  bundle=$(dirname "$(find "$out/programs" -name sinter -type f | head -1)")
fi
export LD_LIBRARY_PATH="$bundle${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
sinter=$bundle/sinter
if [ -d "$bundle/openmpi" ] && ! command -v mpirun > /dev/null; then  # one that was carried here
  export PATH="$bundle/openmpi/bin:$PATH" OPAL_PREFIX=$bundle/openmpi OPAL_BINDIR=$bundle/openmpi/bin OPAL_LIBDIR=$bundle
  export OPAL_PKGLIBDIR=$bundle/openmpi/mca OPAL_DATADIR=$bundle/openmpi/share OPAL_PKGDATADIR=$bundle/openmpi/share
  export OPAL_SYSCONFDIR=$bundle/openmpi/share OMPI_MCA_plm=isolated
fi
text=${TEXT:-data/stories/valid.txt}
models=tests/golden/models
device=${DEVICE:-cuda}
began=$SECONDS limit=${SECONDS_LEFT:-560}
jobs=1
[ "$part" != check ] || jobs=4
jobs=${JOBS:-$jobs}

# ---- the steps: what a step runs, its limit in seconds, and which part it belongs to, in the order they run ----
declare -A command limits parts
order=()
step() {  # NAME PART SECONDS COMMAND; the command's standard output is NAME.json where it prints JSON
  order+=("$1")
  parts[$1]=$2 limits[$1]=$3 command[$1]=$4
}
kernel() { step "kernel_$1" check "${2:-40}" "$bundle/test_cuda --gtest_filter=$1.*"; }
bench() { step "bench_$1" speed "$2" "$sinter bench --json $3"; }

step machine check 20 "nvidia-smi; nproc; free -g; $sinter --version"
# Kernels, the newest first.
for name in QuantizedProduct Dequantize DecodeAttention FewRowsMatmul Matmul CrossEntropy AttentionParts VocabEmbedding SoftmaxParts; do
  kernel $name
done
# What is left out for want of time comes last: a later call of `run` makes up for it.
step greedy_fp32 check 90 "$sinter verify $models/* --device $device --json"
step greedy_bf16 check 90 "$sinter verify $models/* --device $device --precision bf16 --json"
step invariance check 70 "SINTER_TEST_DEVICE=$device $bundle/test_engine --gtest_filter='*Invariance*Bf16:PagedDecode*Bf16'"
step quantized_cases check 60 "$sinter verify tests/golden/quant tests/golden/gguf --device $device --json"
step graphs_and_copies check 40 "$bundle/test_train --gtest_filter='StepGraphs.*:*CopiesOn*'"
step kl_weights check 30 "kl --quantize fp8"
step kl_cache check 30 "kl --kv-cache fp8"
step memcheck check 70 "sanitize memcheck QuantizedProduct Dequantize DecodeAttention AttentionParts SoftmaxParts"
step racecheck check 70 "sanitize racecheck QuantizedProduct DecodeAttention"
step ranks_data check 40 "two_ranks parallel.dp=2"
step ranks_tensor check 40 "two_ranks parallel.tp=2"
step offload check 40 "offload"
step recipes check 180 "$sinter verify recipes --seed 1 --count 200 --device $device --jobs 12"
step tune_cases check 60 "$sinter verify tests/golden/tune --device $device --json"
step engine check 60 "SINTER_TEST_DEVICE=$device $bundle/test_engine --gtest_filter='Engine.*:KvFormat.*'"
step ranks_context check 60 "two_ranks parallel.cp=2"
step ranks_zero3 check 60 "two_ranks parallel.dp=2 parallel.zero=3"
step ranks_pipeline check 60 "two_ranks parallel.pp=2"
step invariance_fp32 check 60 "SINTER_TEST_DEVICE=$device $bundle/test_engine --gtest_filter='*Invariance*Fp32:PagedDecode*Fp32'"
step kernels_all check 240 "$bundle/test_cuda"

bench gpu_ceilings 30 gpu_ceilings
bench decode_8B 150 "decode --only 8B"
bench prefill 60 prefill
step fresh_prompts speed 40 "SINTER_CUDA_FRESH=0 $sinter bench --json prefill --only 'prefill 8192'"
bench decode_7B 200 "decode --only 7B"
bench gpu_tune_step 180 gpu_tune_step
bench gpu_serve 90 gpu_serve
bench gpu_load 90 "gpu_load --only bf16"
bench gpu_score 60 gpu_score
bench train_124M 45 "gpu_train_step --only 124M"
bench train_1B 60 "gpu_train_step --only Llama"
bench train_1_5B 60 "gpu_train_step --only 1.5B"
bench decode_experts 60 "decode --only 16x1B"
step offload_large speed 200 "offload_large"
step batch_invariant_cost speed 60 "SINTER_BATCH_INVARIANT=1 $sinter bench --json decode --only '8B bf16 cache bf16 b32 512'"
bench kernels 120 gpu_kernels

# ---- what steps are made of ----
kl() {  # FLAGS of eval kl
  [ -n "${MODEL:-}" ] || { echo "left out: MODEL names no folder"; return 77; }
  "$sinter" eval kl "$MODEL" "$MODEL" "$text" --device $device --precision bf16 --json "$@"
}

sanitize() {  # TOOL KERNEL...
  local tool=$1 status=0
  shift
  command -v compute-sanitizer > /dev/null || { echo "left out: no compute-sanitizer"; return 77; }
  for kernel in "$@"; do
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$bundle/test_cuda" --small --gtest_filter="$kernel.*" 2>&1 |
      grep -v '^ok ' | tail -40
    [ "${PIPESTATUS[0]}" = 0 ] || status=1
  done
  return $status
}

# A small model on the stories; its losses, a line a step, on standard output.
train() {  # NAME [section.key=value ...]
  local folder=$runs/$1
  [ -d "$runs/tokenizer" ] || "$sinter" tokenizer train "$text" --vocab-size 1024 --out "$runs/tokenizer" >&2 || return 1
  [ -f "$runs/round.toml" ] || printf '%s\n' '[model]' 'family = "llama"' 'hidden = 256' 'layers = 6' 'heads = 8' \
    'kv_heads = 2' 'ffn = 512' '[data]' "sources = \"$text\"" "tokenizer = \"$runs/tokenizer\"" 'sequence_length = 256' \
    '[train]' 'steps = 20' 'batch_tokens = 4096' 'micro_batch = 4' 'precision = "bf16"' "device = \"$device\"" \
    '[optimizer]' 'kind = "adamw"' 'lr = 1e-3' '[schedule]' 'warmup = 5' > "$runs/round.toml"
  rm -rf "$folder"
  ${LAUNCH:-} "$sinter" train "$runs/round.toml" -q checkpoint.dir="$folder" checkpoint.keep=1 "${@:2}" >&2 || return 1
  grep -o '"loss":[0-9.e-]*' "$folder/metrics.jsonl" | head -20
}

# Losses of two runs may differ by rounding: 1 % of each.
compare_losses() {  # FILE FILE
  [ -s "$1" ] && [ -s "$2" ] || { echo "a run left no losses"; return 1; }
  paste -d: "$1" "$2" | awk -F: '{d = $2 - $4; if (d < 0) d = -d; if (d > w) w = d; if (d > 0.01 * $2) bad++; n++}
    END {printf "%d steps, largest difference of a loss %g, %d beyond 1 %%\n", n, w, bad; exit bad > 0 || n < 5}'
}

two_ranks() {  # [section.key=value ...]: two processes share the GPU, tensors go through the host's memory
  local mpirun=${MPIRUN:-mpirun}
  command -v "${mpirun%% *}" > /dev/null || { echo "left out: no mpirun"; return 77; }
  train alone "${@/parallel.*=*/train.device=$device}" > "$runs/alone.txt" || return 1
  LAUNCH="$mpirun -n 2 --oversubscribe --allow-run-as-root" train together "$@" > "$runs/together.txt" || return 1
  compare_losses "$runs/alone.txt" "$runs/together.txt"
}

offload() {  # with most of the state in host memory, under a limit
  train plain train.recompute=full > "$runs/plain.txt" || return 1
  train offloaded train.recompute=full parallel.offload_optimizer=true parallel.offload_gradients=true \
    parallel.offload_parameters=true parallel.device_memory_gib=20 > "$runs/offloaded.txt" || return 1
  compare_losses "$runs/plain.txt" "$runs/offloaded.txt"
}

# 5.45 billion parameters with 81 GiB of state, four times what the device may hold. The log tells a step's computing
# and its copies. OFFLOAD_FOLDER: a folder whose disk has room for a checkpoint of 71 GiB, though none is written.
offload_large() {
  "$sinter" tokenizer train "$text" --vocab-size 1024 --out "$runs/tokenizer" >&2 || return 1
  printf '%s\n' '[model]' 'family = "llama"' 'hidden = 4096' 'layers = 25' 'heads = 32' 'kv_heads = 8' 'ffn = 14336' \
    '[data]' "sources = \"$text\"" "tokenizer = \"$runs/tokenizer\"" 'sequence_length = 2048' 'packing = "stream"' \
    '[train]' 'steps = 5' 'batch_tokens = 8192' 'micro_batch = 4' 'precision = "bf16"' 'recompute = "full"' \
    "device = \"$device\"" '[checkpoint]' "dir = \"${OFFLOAD_FOLDER:-$runs}/large\"" 'minutes = 0' 'background = false' \
    '[parallel]' 'offload_optimizer = true' 'offload_gradients = true' 'offload_parameters = true' \
    'device_memory_gib = 20' > "$runs/large.toml"
  # Ended before its state is written, which would be most of the time.
  "$sinter" train "$runs/large.toml" > "$runs/large.txt" 2>&1 &
  local run=$!
  for ((i = 0; i < 150; i++)); do
    sleep 1
    grep -q 'offload: ' "$runs/large.txt" && break
    kill -0 $run 2> /dev/null || break
  done
  kill -KILL $run 2> /dev/null
  cat "$runs/large.txt" "${OFFLOAD_FOLDER:-$runs}/large/metrics.jsonl"
  grep -q 'offload: ' "$runs/large.txt"
}

export -f kl sanitize train compare_losses two_ranks offload offload_large
export sinter bundle out text device SINTER_SOURCE_DIR="$root"

# ---- running them ----
line() { printf '%-22s %-9s %6s s  %s\n' "$@" | tee -a "$out/summary-$part.txt"; }
run_step() {  # NAME SECONDS
  local name=$1 allowed=$2 start=$SECONDS status how last
  local log=$out/steps/$name.log
  export runs=$out/runs/$name  # what a step trains lies in a folder of its own
  mkdir -p "$runs"
  timeout -k 5 "$allowed" bash -c "${command[$name]}" > "$out/steps/$name.out" 2> "$out/steps/$name.err"
  status=$?
  case $status in
    0) how=ok ;;
    77) how="left out" ;;
    124 | 137) how="too long" ;;
    *) how="FAILED" ;;
  esac
  if head -c 1 "$out/steps/$name.out" | grep -q '[[{]'; then
    cp "$out/steps/$name.out" "$out/steps/$name.json"
  fi
  cat "$out/steps/$name.err" "$out/steps/$name.out" > "$log"
  rm -rf "$out/steps/$name.out" "$out/steps/$name.err" "$runs"
  # In the log of the part: what is no passed comparison; all of it is in the step's own.
  { echo "==== $name: ${command[$name]}"
    grep -v '^ok ' "$log" | grep -v '"holds": true' | tail -c 60000; } > "$out/steps/$name.short"
  flock "$out/steps" cat "$out/steps/$name.short" >> "$out/$part.log"
  rm "$out/steps/$name.short"
  last=$(grep -v '^[]}]' "$log" | tail -1 | cut -c 1-110)
  line "$name" "$how" $((SECONDS - start)) "$last"
}

case $part in
  list)
    for name in "${order[@]}"; do printf '%-22s %-6s %4s s  %s\n' "$name" "${parts[$name]}" "${limits[$name]}" "${command[$name]}"; done
    exit 0 ;;
  run) chosen=("$@") ;;
  check | speed)
    chosen=()
    for name in "${order[@]}"; do [ "${parts[$name]}" = "$part" ] && chosen+=("$name"); done ;;
  *) echo "round.sh: '$part' is no part; expected check, speed, list or run" >&2; exit 2 ;;
esac
: > "$out/$part.log"
: > "$out/summary-$part.txt"
for name in "${chosen[@]}"; do
  [ -n "${command[$name]:-}" ] || { echo "round.sh: no step '$name'" >&2; exit 2; }
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  left=$((limit - (SECONDS - began))) allowed=${limits[$name]}
  if [ "$left" -lt 8 ]; then line "$name" "not begun" 0 "the part's $limit seconds are over"; continue; fi
  run_step "$name" $((allowed < left ? allowed : left)) &
done
wait
rm -rf "$out/runs"
tar czf "$out/$part-steps.tar.gz" -C "$out" steps
echo "==== summary" >> "$out/$part.log"
cat "$out/summary-$part.txt" >> "$out/$part.log"
! grep -q ' FAILED ' "$out/summary-$part.txt"
