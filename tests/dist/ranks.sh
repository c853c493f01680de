#!/usr/bin/env bash
# Ranks that disagree, fail, hang or die end with an error that says who and why. Usage: ranks.sh PROGRAM SCRATCH_FOLDER
set -uo pipefail
program=$1 scratch=$2
mpirun=$(cd "$(dirname "$0")/.." && pwd)/mpirun.sh
rm -rf "$scratch" && mkdir -p "$scratch/0" "$scratch/1" && cd "$scratch" || exit 1
failed=0
claim() { # claim NAME CONDITION...: a condition that does not hold is a failure
  local name=$1
  shift
  if "$@"; then echo "ok    $name"; else echo "FAIL  $name"; cat out.txt; failed=1; fi
}
says() { grep -q -- "$1" out.txt; }
says_once() { [ "$(grep -c -- "$1" out.txt)" = 1 ]; }

cat > words.txt <<'TEXT'
one two three four five six seven eight nine ten
TEXT
for i in $(seq 200); do echo "line $i is here to be learned by a very small model"; done >> words.txt
"$program" tokenizer train words.txt --out tok --vocab-size 300 > tokenizer.log 2>&1 || { cat tokenizer.log; exit 1; }
cat > r.toml <<TOML
[model]
family = "llama"
hidden = 16
layers = 2
heads = 2
ffn = 32
[data]
sources = ["$scratch/words.txt"]
tokenizer = "$scratch/tok"
sequence_length = 16
[train]
steps = 4
micro_batch = 1
[checkpoint]
dir = "$scratch/run"
TOML

# Each rank its own override.
$mpirun 2 bash -c 'if [ $OMPI_COMM_WORLD_RANK = 0 ]; then L=1e-3; else L=2e-3; fi
  exec "$0" train -q r.toml optimizer.lr=$L' "$program" > out.txt 2>&1
claim "another learning rate on a rank is refused" [ $? -ne 0 ]
claim "and named with both values" says "rank 1: the recipe differs from that of rank 0; optimizer.lr is 0.002, on rank 0 0.001"

# Each rank its own file under one name.
for r in 0 1; do sed "s/line/rank $r/" words.txt > $r/docs.txt; done
$mpirun 2 bash -c 'cd $OMPI_COMM_WORLD_RANK && exec "$0" train -q ../r.toml data.sources=docs.txt data.cache=cache checkpoint.dir=run' \
  "$program" > out.txt 2>&1
claim "other data on a rank are refused" [ $? -ne 0 ]
claim "and the source is named" says "rank 1: data.sources"

$mpirun 3 "$program" train -q r.toml model.heads=3 > out.txt 2>&1
claim "an error that all ranks have is printed once" says_once "model.hidden 16 is not a multiple"

# The ranks of a machine share its memory.
$mpirun 2 "$program" train r.toml --dry-run model.hidden=32768 model.heads=64 model.ffn=131072 model.layers=64 > out.txt 2>&1
claim "what does not fit is refused" [ $? -ne 0 ]
claim "with each rank's share of the memory" says "for each of the machine's 2 ranks"

# The picture of a step that ran shows what the planner's does.
rm -rf run
SINTER_TRACE=$scratch/run.json $mpirun 2 "$program" train -q r.toml parallel.pp=2 train.batch_tokens=64 > out.txt 2>&1
claim "a step that ran is drawn" test -s run.json -a -s run.json.svg
"$program" plan simulate --recipe r.toml parallel.pp=2 train.batch_tokens=64 --gpus 2xH100 --trace plan.json --svg plan.svg > out.txt 2>&1
actions() { grep -o '"name":"[a-z ]* [0-9]*","cat":"[a-z ]*"' "$1" | sort; }
claim "with the actions that the planner draws of the recipe" diff <(actions run.json) <(actions plan.json)
claim "sends and computations of four micro-batches on two ranks" [ "$(actions run.json | wc -l)" = 24 ]

# A rank that stops answering.
rm -rf run
$mpirun 2 bash -c 'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then (sleep 4; kill -STOP $$; sleep 12; kill -9 $$) & fi
  exec "$0" train -q r.toml train.steps=1000000 parallel.timeout=2' "$program" > out.txt 2>&1
claim "a rank that hangs ends the run" [ $? -ne 0 ]
claim "and is named with the call" says "is not done after .*no word from rank 1"

# kill -9 of a rank: over soon; the rest goes on where it was, on one rank.
rm -rf run
begin=$SECONDS
$mpirun 2 bash -c 'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then (sleep 6; kill -9 $$) & fi
  exec "$0" train -q r.toml train.steps=1000000 checkpoint.every=20' "$program" > out.txt 2>&1
claim "a killed rank ends the run" [ $? -ne 0 ]
claim "within 30 seconds of its death" [ $((SECONDS - begin)) -lt 36 ]
claim "and is named" says "rank 1"
done=$(readlink run/latest | sed 's/step-0*//')
"$program" train -q r.toml train.batch_tokens=32 train.steps=$((done + 2)) > out.txt 2>&1
claim "one rank goes on from its checkpoint" says "resumed from"
claim "to the end" says "model in"
exit $failed
