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

# Requests of an API client: each of these changes of the captured answers is found.
mkdir -p replay/api; cp "$golden"/eval/fewshot_sampling.json replay; cp -r "$golden"/eval/models replay
echo '{"models": {"tiny-gpt2": {"folder": "models/tiny-gpt2"}}}' > replay/config.json
"$sinter" verify replay > out.txt || fail "a folder without api/ fails: $(cat out.txt)"
for change in "loglikelihood-text|e[0]['response']['choices'][0]['logprobs']['token_logprobs'][3] += 1e-2|log-likelihoods" \
  "loglikelihood-text|file['samples'][0]['parsed'][1][0][1] = True|document 0, request 1: greedy differs" \
  "loglikelihood-text|file['samples'][0]['parsed'][3][0][0] -= 1e-2|log-likelihoods" \
  "remote-tokenizer|e[0]['response']['eos_token'] = '</s>'|GET /tokenizer_info: eos_token" \
  "remote-tokenizer|e[3]['response']['tokens'][2] += 1|POST /tokenize: tokens" \
  "chat-generate|e[0]['response']['choices'][0]['message']['content'] += '!'|expected \"<|im_start|>assistant" \
  "generate-text-concurrent|file['samples'][3]['parsed'][0][0] = 'x'|document 1, request 0"; do
  IFS='|' read -r name edit told <<< "$change"
  python3 - "$golden/eval/api/$name.json" "$name" "$edit" <<'P'
import json, sys
file = json.load(open(sys.argv[1]))
e = file["exchanges"]
exec(sys.argv[3])
json.dump(file, open(f"replay/api/{sys.argv[2]}.json", "w"))
P
  if "$sinter" verify replay > out.txt 2>&1; then fail "passes: $edit in $name"; fi
  grep -qF "$told" out.txt || fail "$edit in $name is not named: $(cat out.txt)"
  rm replay/api/*
done
