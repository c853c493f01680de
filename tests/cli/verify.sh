#!/usr/bin/env bash
# `sinter verify` of a root with cases of several kinds, and what it says of figures that it does not check.
set -euo pipefail
sinter=$1 scratch=$2
golden=$(cd "$(dirname "$0")/../golden" && pwd)
rm -rf "$scratch"; mkdir -p "$scratch/root/eval/api"; cd "$scratch"
fail() { echo "verify.sh: $*"; exit 1; }
cp -r "$golden/tune/reward" "$golden/data/badwords" root
cp "$golden"/eval/{fewshot_sampling,ifeval,math}.json root/eval
echo '{"task": "unheard_of"}' > root/eval/unheard_of.json
echo '{}' > root/eval/api/one.json

"$sinter" verify root > out.txt || fail "the root's cases fail: $(tail -3 out.txt)"
for check in "reward: reward" "badwords: " "eval: ifeval strict" "eval: ifeval aggregated" "eval: random draws" "eval: math math_verify verdicts"; do
  grep -qF "  $check" out.txt || fail "no check of '$check' in the root: $(cat out.txt)"
done
for part in "api/" "unheard_of.json"; do
  grep -F "not checked" out.txt | grep -qF "$part" || fail "$part is passed over in silence: $(cat out.txt)"
done

python3 - <<'P'
import json
file = json.load(open("root/eval/ifeval.json"))
file["aggregated"]["all_responses"]["inst_level_loose_acc"] += 1e-3
json.dump(file, open("root/eval/ifeval.json", "w"))
P
if "$sinter" verify root > out.txt 2>&1; then fail "a wrong aggregate of ifeval passes"; fi
grep -q "inst_level_loose_acc" out.txt || fail "the wrong aggregate is not named: $(cat out.txt)"
