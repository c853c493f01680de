#!/usr/bin/env bash
# Evaluation and synthesis through a server: `sinter serve` on loopback gives what the model in this process gives.
set -euo pipefail
sinter=$1 scratch=$2
golden=$(cd "$(dirname "$0")/../golden/eval" && pwd)
model=$golden/models/tiny-gpt2
rm -rf "$scratch"; mkdir -p "$scratch"; cd "$scratch"
fail() { echo "eval_server.sh: $*"; exit 1; }
"$sinter" serve "$model" --port 0 > address 2> serve.log & server=$!
trap 'kill $server 2> /dev/null || true' EXIT
for _ in $(seq 600); do [ -s address ] && break; sleep 0.05; done
url=$(grep -o 'http://[0-9.]*:[0-9]*' address | head -1)
[ -n "$url" ] || fail "the server did not start: $(cat serve.log)"

"$sinter" eval copa,arc_easy "$model" --data "$golden/data" --limit 30 --output here > /dev/null
"$sinter" eval copa,arc_easy "$model" --server "$url" --data "$golden/data" --limit 30 --output own > /dev/null
"$sinter" eval copa,arc_easy --server "$url/v1/" --data "$golden/data" --limit 30 --output theirs > /dev/null  # the server's tokenizer
python3 - <<'P'
import json
def samples(run, task):
    return [json.loads(line) for line in open(f"{run}/samples_{task}.jsonl")]
for run in ("own", "theirs"):
    for task in ("copa", "arc_easy"):
        a, b = samples("here", task), samples(run, task)
        assert len(a) == len(b) == 30
        for x, y in zip(a, b):
            for p, q in zip(x["resps"], y["resps"]):
                assert abs(p[0] - q[0]) < 2e-4 and p[1] == q[1], (run, task, p, q)
            assert x["filtered"] == y["filtered"]
P

# Texts from seeds: by the model here and by the server, the same; what is done is not asked again.
printf '{"id": "a", "text": "Tom had a red ball."}\n{"id": "b", "text": "The dog was sad."}\n' > seeds.jsonl
args=(data synth seeds.jsonl --prompt '{{ text }} {{ ["Then", "One day"][variant] }}' --plain --variants 2 --max-tokens 12 --temperature 0)
"$sinter" "${args[@]}" --model "$model" -o here.jsonl > /dev/null
"$sinter" "${args[@]}" --server "$url" -o there.jsonl > /dev/null
cmp here.jsonl there.jsonl || fail "the server writes other texts"
[ "$(wc -l < here.jsonl)" -ge 2 ] || fail "texts are missing"
kill $server; wait $server 2> /dev/null || true
printf '{"key": 1' >> there.jsonl.work/answers.jsonl
if "$sinter" "${args[@]}" --server "$url" -o again.jsonl 2> error; then fail "a server that is gone answered"; fi
grep -q "no connection" error || fail "the error does not say that there is no connection: $(cat error)"
cp -r here.jsonl.work resumed.work
"$sinter" "${args[@]}" --model "$model" -o resumed.jsonl --work resumed.work > /dev/null
cmp here.jsonl resumed.jsonl || fail "a resumed run writes other texts"
[ "$(wc -l < resumed.work/answers.jsonl)" = 4 ] || fail "texts were asked for twice"
if "$sinter" data synth seeds.jsonl --prompt '{{ nothing }}' --model "$model" -o x.jsonl 2> error; then fail "an unknown field was accepted"; fi
grep -q "seed document 'a'.*nothing" error || fail "the error does not name seed and field: $(cat error)"
echo ok
