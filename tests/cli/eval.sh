#!/usr/bin/env bash
# Evaluation as a user runs it: a task of one's own, results, resuming after kill -9, comparing, refusing code.
set -euo pipefail
sinter=$1 scratch=$2
golden=$(cd "$(dirname "$0")/../golden/eval" && pwd)
model=$golden/models/tiny-gpt2
rm -rf "$scratch"; mkdir -p "$scratch"; cd "$scratch"
fail() { echo "eval.sh: $*"; exit 1; }

# The shipped task gives lm-evaluation-harness's numbers (copa.json, 0-shot, tiny-gpt2).
"$sinter" eval copa "$model" --data "$golden/data" --output whole --html --json > whole.json
python3 - "$golden/copa.json" whole.json <<'P'
import json, sys
want = next(r for r in json.load(open(sys.argv[1]))["runs"] if r["id"] == "0-shot")["models"]["tiny-gpt2"]["results"]["copa"]
got = json.load(open(sys.argv[2]))["results"]["copa"]
for key in ("acc,none", "acc_stderr,none"):
    assert abs(got[key] - want[key]) < 1e-9, (key, got[key], want[key])
P
[ -s whole/samples_copa.jsonl ] && [ -s whole/index.html ] || fail "samples or page are missing"

# kill -9 in the middle, resumed: the same answers.
"$sinter" eval copa "$model" --data "$golden/data" --output cut --batch-tokens 32 > /dev/null 2>&1 & pid=$!
for _ in $(seq 200); do [ "$(cat cut/answers.jsonl 2> /dev/null | wc -l)" -ge 20 ] && break; sleep 0.02; done
kill -9 $pid 2> /dev/null || true; wait $pid 2> /dev/null || true
printf '{"key": 12' >> cut/answers.jsonl
"$sinter" eval copa "$model" --data "$golden/data" --output cut > /dev/null
cmp whole/samples_copa.jsonl cut/samples_copa.jsonl || fail "the resumed run has other samples"

# A task of one's own.
cat > mine.toml <<'T'
task = "mine"
kind = "multiple_choice"
context = "{{question}}"
choices = "{{options}}"
target = "right"
metrics = ["acc", "acc_norm"]
[data]
test = "mine.jsonl"
T
echo '{"question": "The sky is", "options": ["blue", "loud"], "right": 0}' > mine.jsonl
"$sinter" eval mine.toml "$model" | grep -q '^mine' || fail "a task of one's own did not run"
"$sinter" eval mine.toml "$model" --json | grep -q 'acc_norm_stderr,none' || fail "the report has not both metrics"

# Comparing, and bad input.
"$sinter" eval compare whole cut | grep -q '+0.0000' || fail "equal runs differ"
echo '{"question": "The sky is", "right": 0}' >> mine.jsonl
if "$sinter" eval mine.toml "$model" 2> error; then fail "a missing field was accepted"; fi
grep -q "mine.jsonl', line 2.*options" error || fail "the error does not name file, line and field: $(cat error)"
if "$sinter" eval hellaswagg "$model" 2> error; then fail "an unknown task was accepted"; fi
grep -q "did you mean 'hellaswag'" error || fail "no nearest name: $(cat error)"
if "$sinter" eval humaneval "$model" 2> error; then fail "code ran without being asked for"; fi
grep -q -e "--allow-code" error || fail "the error does not say how to allow code: $(cat error)"
# Where no sandbox works code is refused, with what to install or allow. In an outer sandbox parts of it are hidden.
if bwrap --dev-bind / / true 2> /dev/null; then
  refused() {  # WORDS BWRAP_OPTIONS...
    local words=$1; shift
    if bwrap --dev-bind / / "$@" "$sinter" eval humaneval "$model" --allow-code 2> error; then fail "code would run without a sandbox"; fi
    grep -q "$words" error || fail "the error does not say '$words': $(cat error)"
  }
  refused "apt install bubblewrap" --ro-bind /dev/null "$(readlink -f "$(command -v bwrap)")"
  without_namespaces=(--unshare-user --disable-userns)
  if bwrap --dev-bind / / "${without_namespaces[@]}" true 2> /dev/null; then
    refused "user namespaces have to be allowed" "${without_namespaces[@]}"
  fi
fi
if "$sinter" eval; then fail "nothing was accepted"; else [ $? = 2 ] || fail "bad usage is not status 2"; fi
echo ok
