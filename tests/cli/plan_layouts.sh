# Drives plan check, search and simulate; args: program, scratch folder.
set -euo pipefail
sinter=$1; scratch=$2; here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$scratch"; mkdir -p "$scratch"

"$sinter" plan check "$here/../golden/plan/vtrain.csv" | grep -q "vTrain single node"
"$sinter" plan check --json "$here/../golden/plan/nanotron.csv" > "$scratch/check.json"
"$sinter" plan search llama-3.1-70b --gpus 1024xH100 --batch 1024 --json --recipe "$scratch/layout.toml" \
  --slurm "$scratch/job.sh" > "$scratch/search.json"
"$sinter" plan simulate llama-3.1-70b --gpus 64xH100 --tp 4 --pp 4 --interleave 4 --batch 64 --straggler 1:2:1.5 \
  --trace "$scratch/trace.json" --svg "$scratch/timeline.svg" --json > "$scratch/simulate.json"
python3 - "$scratch" <<'PY'
import json, sys, xml.dom.minidom
folder = sys.argv[1] + "/"
check = json.load(open(folder + "check.json"))
assert check["rows"] == check["predicted"] + sum(u["rows"] for u in check["unpredicted"]), "rows are lost"
search = json.load(open(folder + "search.json"))
best = search["layouts"][0]
assert best["dp"] * best["tp"] * best["pp"] * best["cp"] == 1024, best
assert all(l["memory_bytes"] <= search["usable_bytes"] for l in search["layouts"])
assert "--nodes=128\n" in open(folder + "job.sh").read()
simulated = json.load(open(folder + "simulate.json"))
assert simulated["ranks"] == 64 and simulated["slowest_pipeline"] == 1, simulated
assert len(json.load(open(folder + "trace.json"))["traceEvents"]) > 100
xml.dom.minidom.parse(folder + "timeline.svg")
PY
bash -n "$scratch/job.sh"
"$sinter" train "$scratch/layout.toml" --print-recipe | grep -q "FILL-IN-YOUR-DATA"

# Fit, time and money come first; conventions only when they are asked for.
"$sinter" plan gpt2 --gpus 8xA100-80GB > "$scratch/plan.txt"
first=$(head -8 "$scratch/plan.txt")
for word in Fits: "A step takes" "GPU hours" '\$'; do
  grep -q "$word" <<< "$first" || { echo "no '$word' in the first lines of a plan: $first"; exit 1; }
done
! grep -qi "convention" <<< "$first" || { echo "a plan opens with conventions: $first"; exit 1; }
"$sinter" plan gpt2 --explain | grep -qi "convention"

refused() {  # [exit status, 2 if left out,] expected words, then the command
  wanted=2; case "$1" in [12]) wanted=$1; shift ;; esac
  words=$1; shift
  status=0; out=$("$sinter" "$@" 2>&1) || status=$?
  [ "$status" = "$wanted" ] || { echo "exit status $status, expected $wanted: $*"; exit 1; }
  case "$out" in *"$words"*) ;; *) echo "'$*' said: $out"; exit 1 ;; esac
}
refused "the least is 1" plan search llama-3.1-8b --gpus 0xH100
refused "did you mean" plan search llama-3.1-8b --gpus 8xH10O
refused "nearest that does is 4" plan search llama-3.1-8b --gpus 8xH100 --tp 3
refused 1 "does not fit" plan search llama-3.1-405b --gpus 8xT4 --batch 8
refused "does not divide" plan simulate llama-3.1-8b --gpus 8xH100 --tp 5
refused "interleaved pipelines need" plan simulate llama-3.1-8b --gpus 8xH100 --pp 4 --interleave 2 --batch 6
refused "expected none, selective or full" plan llama-3.1-8b --recompute nonsense
refused "expected none, selective or full" plan llama-3.1-8b --gpus 8xH100 --recompute nonsense
refused "expected none, selective or full" plan search llama-3.1-8b --gpus 8xH100 --recompute nonsense
refused "unknown number format" plan search llama-3.1-8b --gpus 8xH100 --moments nonsense
refused "--schedule" plan simulate llama-3.1-8b --gpus 8xH100 --pp 2 --schedule nonsense
refused "PIPELINE:STAGE:FACTOR" plan simulate llama-3.1-8b --gpus 8xH100 --pp 2 --straggler x

# Tables stay within 120 columns, the answer comes first and says what `sinter train` can do of it.
"$sinter" plan llama-3-8b --gpus 16x8xA100-40GB > "$scratch/plan.txt"
grep -q "^Fits: " "$scratch/plan.txt"
grep -q "Constants: fitted to published runs on A100" "$scratch/plan.txt"
for words in "search llama-3.1-8b --gpus 64xH100" "inference llama-3.1-8b --gpus 8xH100" devices; do
  wide=$("$sinter" plan $words | grep -v '^ *[0-9]* *.* (such as' | awk 'length($0) > 120' | head -n 3)
  [ -z "$wide" ] || { echo "wider than 120 columns: $wide"; exit 1; }
done
refused "training is planned in" plan llama-3.1-8b --gpus 8xH100 --format int4

# A recipe for machines that are not here.
"$sinter" train --template cluster > "$scratch/cluster.toml"
"$sinter" train "$scratch/cluster.toml" --dry-run --on 8xH100 model.vocab_size=32000 > "$scratch/dry.txt"
grep -q "^time .* GPU hours" "$scratch/dry.txt"
refused 1 "does not fit" train "$scratch/cluster.toml" --dry-run --on 8xT4 model.vocab_size=32000 train.micro_batch=16
refused "--dry-run" train "$scratch/cluster.toml" --on 8xH100

# What people type.
refused "'llama-3-8b', 'llama-3-70b'" plan llama3
refused "names no device" plan llama-3-8b --gpus 16x8
refused "the number comes first, 128xA100-40GB" plan llama-3-8b --gpus A100-40GBx128
refused "16 nodes of 8 each are --gpus 16x8xA100-40GB" plan llama-3-8b --nodes 16 --gpus 8xA100-40GB
refused "are both 'r.toml'" plan search llama-3-8b --recipe r.toml --slurm r.toml
"$sinter" plan search gpt2 --gpus 8xH100 --slurm "$scratch/alone.sh" > "$scratch/alone.txt"
grep -q "alone.sh; it starts recipe.toml: give --recipe, or save the recipe above as that" "$scratch/alone.txt"
refused "0.01 given; expected 0.1 to 600" plan --measure --seconds 0.01
[ "$("$sinter" plan devices a100 | grep -c '^A100')" -ge 3 ] || { echo "plan devices a100 does not list every A100"; exit 1; }
