# Drives `train` as people do: plan, run, samples, stop by a signal, go on, mistakes; args: program, scratch folder.
set -euo pipefail
sinter=$1; scratch=$2; here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$scratch"; mkdir -p "$scratch"; cd "$scratch"
export SINTER_THREADS=1
head -c 60000 "$here/../../data/stories/train.txt" > text.txt
"$sinter" tokenizer train text.txt --vocab-size 300 --out tok > /dev/null 2>&1
cat > recipe.toml <<'TOML'
[model]
family = "llama"
hidden = 16
layers = 2
heads = 2
vocab_size = 20000  # far more than the tokenizer has: samples must not draw from the rest
[data]
sources = "text.txt"
tokenizer = "tok"
sequence_length = 16
cache = "tokens"
[train]
steps = 4
micro_batch = 4
[log]
sample_prompts = ["", "Once upon"]
sample_every = 2
sample_tokens = 8
[checkpoint]
dir = "run"
every = 2
TOML

expect() {  # status, words in the message, command...
  local want=$1 words=$2 status=0; shift 2
  "$@" > said.txt 2>&1 || status=$?
  [ $status = "$want" ] || { echo "exit $status instead of $want: $*"; cat said.txt; exit 1; }
  grep -qF -- "$words" said.txt || { echo "no '$words' in:"; cat said.txt; exit 1; }
}

"$sinter" train recipe.toml --dry-run --json 2> /dev/null | python3 -c '
import json, sys
plan = json.load(sys.stdin)
assert plan["steps"] == 4 and plan["batch_tokens"] == 64 and min(plan["memory_bytes"].values()) > 0, plan'
[ ! -e run ] || { echo "a dry run left a checkpoint folder"; exit 1; }
"$sinter" train recipe.toml --print-recipe > whole.toml
"$sinter" train whole.toml --print-recipe | cmp - whole.toml

expect 0 "model in run/latest" "$sinter" train recipe.toml
[ "$(grep -c '^step [24]: Once upon' said.txt)" = 2 ] || { echo "expected two samples:"; cat said.txt; exit 1; }
expect 0 "all 4 steps are done already" "$sinter" train recipe.toml
expect 0 'optimizer.lr: 0.0003 -> 0.001' "$sinter" train recipe.toml train.steps=5 optimizer.lr=1e-3
expect 1 "num_hidden_layers was 2 and is 1 now" "$sinter" train recipe.toml train.steps=6 model.layers=1
expect 2 "did you mean 'steps'" "$sinter" train recipe.toml train.stepz=6
expect 1 "model.hidden 16 is not a multiple of model.heads 3" "$sinter" train recipe.toml model.heads=3 checkpoint.dir=other
expect 2 "such as train.steps=100; did you mean 'train.steps'?" "$sinter" train recipe.toml steps=6
expect 2 "[train] has no key 'lr'; did you mean 'optimizer.lr'?" "$sinter" train recipe.toml train.lr=1
expect 2 "written section.key=value, without dashes" "$sinter" train recipe.toml --steps 6
expect 0 "largest learning rate" "$sinter" train --keys lr
expect 0 "largest learning rate" "$sinter" train --keys optimizer.lr
expect 0 "[parallel]" "$sinter" train recipe.toml --keys
expect 2 "did you mean 'optimizer'" "$sinter" train --keys optimiser
printf '#!/bin/bash\nset -e\n' > job.sh
expect 1 "'job.sh' line 2 is not TOML: key-value pair" "$sinter" train job.sh
expect 1 'expected a recipe, such as `sinter train --template small` prints' "$sinter" train text.txt
expect 1 "parallel.dp is 8 x tp 1" "$sinter" train recipe.toml parallel.dp=8
expect 2 "--json requires --dry-run" "$sinter" train recipe.toml --json
expect 0 "taking its newest model, 'run/step-00000005'" "$sinter" generate run --prompt x --max-tokens 2
expect 1 "its newest model is 'run/latest'" "$sinter" eval perplexity run text.txt
expect 2 "--x: 'hourz' given; expected one of step, tokens, hours; did you mean 'hours'?" "$sinter" plot run --x hourz
expect 1 "a lower optimizer.lr, a longer schedule.warmup" "$sinter" train recipe.toml -q optimizer.kind=sgd optimizer.lr=1e14 optimizer.clip=0 \
  guard.max_skips=2 train.steps=20 checkpoint.dir=boom log.sample_every=0
[ "$(grep -c diverged said.txt)" = 1 ] || { echo "divergence is not told once:"; cat said.txt; exit 1; }
tail -n 1 run/metrics.jsonl | python3 -c '
import json, sys, time
line = json.load(sys.stdin)
assert next(iter(line)) == "step" and 0 <= time.time() - line["time"] < 3600, line'
mkdir early; : > early/metrics.jsonl
expect 1 "'early' is the folder of a training run that has written no model yet" "$sinter" generate early --prompt x
expect 0 "model in mtp/latest" "$sinter" train recipe.toml model.mtp_heads=1 checkpoint.dir=mtp log.metrics=/dev/null
test -c /dev/null || { echo "/dev/null is a file now"; exit 1; }
expect 0 "perplexity" "$sinter" eval perplexity mtp/latest text.txt
expect 0 "token shard   text-" "$sinter" inspect tokens
expect 0 "tokens/text-" "$sinter" data inspect tokens
expect 2 "did you mean '--dry-run'" "$sinter" train recipe.toml --dry-rum

for signal in TERM INT USR1; do
  "$sinter" train recipe.toml train.steps=1000000 log.sample_every=0 checkpoint.every=0 -q > said.txt 2>&1 &
  until [ "$(wc -l < run/metrics.jsonl)" -ge 20 ]; do sleep 0.1; done
  kill -$signal $!
  wait $! || { echo "exit $? after SIG$signal"; cat said.txt; exit 1; }
  grep -q "stopped early: SIG$signal" said.txt || { echo "no word of SIG$signal:"; cat said.txt; exit 1; }
  rm -rf run
  expect 0 "model in run/latest" "$sinter" train recipe.toml
done
# A validation loss of an earlier step is told as that.
"$sinter" train recipe.toml train.steps=1000000 data.validation=text.txt log.eval_every=50 log.sample_every=0 checkpoint.every=0 \
  checkpoint.dir=early_stop -q > said.txt 2>&1 &
until [ "$(cat early_stop/metrics.jsonl 2> /dev/null | wc -l)" -ge 60 ]; do sleep 0.1; done
kill -INT $!
wait $! || { echo "exit $? after SIGINT"; cat said.txt; exit 1; }
steps=$(grep -oE '^[0-9,]+ steps' said.txt | tr -dc 0-9)
[ $((steps % 50)) = 0 ] || grep -qE "validation loss [0-9.]+ at step $((steps / 50 * 50))," said.txt || {
  echo "the last line after $steps steps says nothing of the step of its validation loss:"; tail -1 said.txt; exit 1; }
# On a terminal of 60 columns the progress line does not wrap, and log lines begin at the line's start.
python3 - "$sinter" <<'PY'
import fcntl, os, pty, re, struct, sys, termios
try:
    pid, terminal = pty.fork()
except OSError as error:
    print("no terminal to try the progress line on:", error)
    sys.exit(0)
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], "train", "recipe.toml", "-q", "train.steps=60", "checkpoint.dir=narrow", "log.sample_every=0",
                           "data.validation=text.txt", "log.eval_every=20", "log.eval_batches=1", "checkpoint.every=0"])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
out = b""
while True:
    try:
        piece = os.read(terminal, 4096)
    except OSError:
        break
    if not piece:
        break
    out += piece
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, out
drawn = re.findall(r"\r(step \d+/60[^\r\n\x1b]*)\x1b\[K", out.decode())
assert drawn and max(map(len, drawn)) <= 59, drawn
for line in re.findall(r"[^\r\n]*info[^\r\n]*validation loss", out.decode()):
    assert re.match(r"(\x1b\[K)?\d\d:\d\d:\d\d ", line), line
PY
echo "train: all as expected"
