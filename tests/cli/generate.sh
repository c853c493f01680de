# Drives generate and eval perplexity on a golden model with a tokenizer trained here; args: program, scratch folder.
set -euo pipefail
sinter=$1; scratch=$2; here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$scratch"; mkdir -p "$scratch/model"
cp "$here"/../golden/models/llama/{config.json,model.safetensors} "$scratch/model/"
head -c 200000 "$here/../../data/stories/train.txt" > "$scratch/text.txt"
"$sinter" tokenizer train "$scratch/text.txt" --vocab-size 500 --special '<|endoftext|>' --out "$scratch/model" >/dev/null

one=$("$sinter" generate "$scratch/model" --prompt "Once upon" --max-tokens 12 --seed 5 --ignore-eos)
two=$("$sinter" generate "$scratch/model" --prompt "Once upon" --max-tokens 12 --seed 5 --ignore-eos)
[ "$one" = "$two" ] || { echo "the same seed gave another text"; exit 1; }
case "$one" in "Once upon"*) ;; *) echo "the prompt is missing: $one"; exit 1 ;; esac

printf '%s\n' '{"prompt": "Once upon", "max_tokens": 12, "seed": 5}' '' '{"prompt": "A dog", "max_tokens": 3}' > "$scratch/in.jsonl"
"$sinter" generate "$scratch/model" --input "$scratch/in.jsonl" --output "$scratch/out.jsonl" --ignore-eos
[ "$(wc -l < "$scratch/out.jsonl")" = 2 ] || { echo "expected two answers"; exit 1; }
python3 - "$scratch/out.jsonl" "$one" <<'PY'
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
assert lines[0]["prompt"] + lines[0]["text"] == sys.argv[2], "alone and among others differ"
assert lines[1]["tokens"] == 3 and lines[1]["finish_reason"] == "length", lines[1]
PY

# A separator of documents is one token of the text, not its letters.
tokens_of() { printf '%s' "$1" > "$scratch/one.txt"; "$sinter" eval perplexity "$scratch/model" "$scratch/one.txt" --json | grep '"tokens"' | tr -dc 0-9; }
[ "$(tokens_of 'A dog.<|endoftext|>')" = $(($(tokens_of 'A dog.') + 1)) ] || { echo "the separator was read as text"; exit 1; }

head -c 3000 "$scratch/text.txt" > "$scratch/short.txt"
"$sinter" eval perplexity "$scratch/model" "$scratch/short.txt" --json > "$scratch/ppl.json"
python3 - "$scratch" <<'PY'
import json, math, sys
j = json.load(open(sys.argv[1] + "/ppl.json"))
text = open(sys.argv[1] + "/short.txt").read()
assert j["bytes"] == len(text.encode()) and j["words"] == len(text.split()), j
assert math.isclose(j["bits_per_byte"], j["loss"] * j["tokens"] / j["bytes"] / math.log(2), rel_tol=1e-9), j
assert math.isclose(j["token_perplexity"], math.exp(j["loss"]), rel_tol=1e-9), j
PY

# A folder that names no BOS or EOS token: the first token is not predicted, unless GPT-2's token for both is there.
mkdir -p "$scratch/bare"
cp "$here"/../golden/models/gpt2/model.safetensors "$scratch/bare/"
sed '/"[a-z]*_token_id"/d' "$here/../golden/models/gpt2/config.json" > "$scratch/bare/config.json"
head -c 300 "$scratch/text.txt" > "$scratch/short.txt"
perplexity_tokens() { "$sinter" eval perplexity "$scratch/bare" "$scratch/short.txt" --json 2>"$scratch/said" | grep '"tokens"' | tr -dc 0-9; }
"$sinter" tokenizer train "$scratch/text.txt" --vocab-size 500 --special '<pad>' --out "$scratch/bare" >/dev/null
rm "$scratch/bare/tokenizer_config.json"
without=$(perplexity_tokens)
grep -q "first token of the text is not predicted" "$scratch/said" || { cat "$scratch/said"; exit 1; }
"$sinter" tokenizer train "$scratch/text.txt" --vocab-size 500 --special '<|endoftext|>' --out "$scratch/bare" --force >/dev/null
rm "$scratch/bare/tokenizer_config.json"
[ "$(perplexity_tokens)" = $((without + 1)) ] || { echo "expected one token more than $without"; cat "$scratch/said"; exit 1; }

expect() {  # status, words in the message, command...
  local want=$1 words=$2 status=0; shift 2
  "$@" > "$scratch/said" 2>&1 || status=$?
  [ $status = "$want" ] || { echo "exit $status instead of $want: $*"; cat "$scratch/said"; exit 1; }
  grep -qF -- "$words" "$scratch/said" || { echo "no '$words' in:"; cat "$scratch/said"; exit 1; }
}
expect 2 "top-p" "$sinter" generate "$scratch/model" --prompt x --top-p 0
expect 2 "expected a whole number from 0" "$sinter" generate "$scratch/model" --prompt x --seed -1
expect 1 "expected a model folder" "$sinter" generate "$scratch/text.txt" --prompt x
expect 2 "give the answers another" "$sinter" generate "$scratch/model" --input "$scratch/in.jsonl" --output "$scratch/in.jsonl"
[ "$(wc -l < "$scratch/in.jsonl")" = 3 ] || { echo "the requests are gone"; exit 1; }
"$sinter" data tokenize "$scratch/text.txt" -t "$scratch/model" -o "$scratch/shard.tok" > /dev/null 2>&1
expect 1 "is a token shard; expected the text" "$sinter" eval perplexity "$scratch/model" "$scratch/shard.tok"

# Cut short: what is answered is there; what was there before stays until the first answer.
{ echo '{"prompt": "A dog", "max_tokens": 3}'; echo '{"prompt": "A", "max_tokens": 500000}'; echo '{"prompt": "A", "max_tokens": 2}'; } > "$scratch/long.jsonl"
echo before > "$scratch/kept.jsonl"
# A shell's background job ignores SIGINT; SIGTERM it does not.
"$sinter" generate "$scratch/model" --input "$scratch/long.jsonl" --output "$scratch/kept.jsonl" --ignore-eos 2> "$scratch/said" &
job=$!
for _ in $(seq 300); do grep -q finish_reason "$scratch/kept.jsonl" && break; sleep 0.2; done
sleep 2  # the third is done a few tokens after the first
kill -TERM $job
status=0; wait $job || status=$?
[ $status = 1 ] || { echo "exit $status"; cat "$scratch/said"; exit 1; }
grep -q "SIGTERM after 2 of 3 answers" "$scratch/said" || { cat "$scratch/said"; exit 1; }
[ "$(grep -c '"finish_reason"' "$scratch/kept.jsonl")" = 2 ] || { cat "$scratch/kept.jsonl"; exit 1; }
expect 2 "did you mean '--prompt'" "$sinter" generate "$scratch/model" --promt x
expect 2 "there is no option '--bogus' of \`sinter generate\`" "$sinter" generate --bogus
expect 2 "there is no option '--temprature' of \`sinter generate\`; did you mean '--temperature'" "$sinter" generate "$scratch/model" --temprature 1
expect 2 "did you mean 'generate'" "$sinter" generat "$scratch/model"
expect 2 "Usage: sinter [OPTIONS] VERB" "$sinter"
expect 2 "one of the verbs perplexity" "$sinter" eval
mkdir -p "$scratch/words" && cp "$scratch/model/tokenizer.json" "$scratch/words/"
expect 1 "holds a tokenizer and no model" "$sinter" generate "$scratch/words" --prompt x
expect 1 "hf download" "$sinter" generate gpt2 --prompt x
expect 1 "config.json" "$sinter" generate "$scratch/nothing" --prompt x --tokenizer "$scratch/model"
expect 2 "device 'gpu'" "$sinter" generate "$scratch/model" --prompt x --device gpu
echo '{"prompt": 3}' > "$scratch/bad.jsonl"
expect 1 "bad.jsonl:1" "$sinter" generate "$scratch/model" --input "$scratch/bad.jsonl"
echo '{"prompt": "x", "temperature": "hot"}' > "$scratch/bad.jsonl"
expect 1 '"temperature" is "hot"' "$sinter" generate "$scratch/model" --input "$scratch/bad.jsonl"
echo '{"prompt": "x", "max_token": 3}' > "$scratch/bad.jsonl"
expect 1 "did you mean 'max_tokens'" "$sinter" generate "$scratch/model" --input "$scratch/bad.jsonl"
echo '{"prompt": "x", "max_tokens": 1, "id": 7, "name": "n", "user": "u", "task": "t"}' > "$scratch/own.jsonl"
printf '{"prompt": "a", "text": "b"}\n' > "$scratch/taken.jsonl"
expect 1 'the key "text" is where the answer goes' "$sinter" generate "$scratch/model" --input "$scratch/taken.jsonl"
expect 0 '"id":7' "$sinter" generate "$scratch/model" --input "$scratch/own.jsonl"
expect 2 "max-tokens is -1" "$sinter" generate "$scratch/model" --prompt x --max-tokens -1
echo '{"prompt": ' > "$scratch/bad.jsonl"
expect 1 "bad.jsonl:1" "$sinter" generate "$scratch/model" --input "$scratch/bad.jsonl"
expect 1 "No such file" "$sinter" generate "$scratch/model" --input "$scratch/nothing.jsonl"
# A bad line is named before anything is written; so is an output that cannot be.
printf '%s\n' '{"prompt": "x"}' '{"prompt": "x", "temperature": -1}' > "$scratch/bad.jsonl"
expect 1 "bad.jsonl:2: temperature is -1" "$sinter" generate "$scratch/model" --input "$scratch/bad.jsonl" --output "$scratch/unwritten"
[ ! -e "$scratch/unwritten" ] || { echo "an output was made for a bad input"; exit 1; }
expect 1 "cannot create '$scratch/nothing/o': No such file" "$sinter" generate "$scratch/model" --input "$scratch/own.jsonl" --output "$scratch/nothing/o" --stats
if grep -q "new token" "$scratch/said"; then echo "work was done for an output that cannot be"; exit 1; fi
expect 2 "0 given; expected 1 or more" "$sinter" eval perplexity "$scratch/model" "$scratch/short.txt" --context 0
# Rotary positions go on past the trained ones, with a warning; a position table ends.
expect 0 "max_position_embeddings" "$sinter" generate "$scratch/model" --prompt x --max-tokens 200 --ignore-eos
long=$(printf 'zq%.0s' {1..80})
printf '%s\n' '{"prompt": "x"}' "{\"prompt\": \"$long\"}" > "$scratch/bad.jsonl"
expect 1 "bad.jsonl:2: the prompt has" "$sinter" generate "$scratch/bare" --input "$scratch/bad.jsonl"
printf '%s\n' "A dog" "$long" /reset "A cat" > "$scratch/talk"
expect 0 "/reset to begin a new one" "$sinter" chat "$scratch/bare" --max-tokens 3 --ignore-eos < "$scratch/talk"
grep -q "^A cat" "$scratch/said" || { echo "the conversation did not go on"; cat "$scratch/said"; exit 1; }
expect 0 "/reset" "$sinter" chat --help
for benchmark in gpu_ceilings gpu_kernels gpu_train_step; do
  expect 1 "$benchmark" "$sinter" bench $benchmark --only nothing-like-this
done
# Weights of NaN are an error of whatever reads them.
python3 - "$scratch/model/model.safetensors" <<'PY'
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
begin = 8 + struct.unpack("<Q", data[:8])[0]
data[begin:] = b"\xff" * (len(data) - begin)
open(sys.argv[1], "wb").write(data)
PY
for choice in --temperature=0 --temperature=0.8 --top-k=5; do
  expect 1 "not finite" "$sinter" generate "$scratch/model" --prompt x $choice
done
expect 1 "training diverged" "$sinter" eval perplexity "$scratch/model" "$scratch/short.txt"
head -c 5000 "$scratch/model/model.safetensors" > "$scratch/cut" && mv "$scratch/cut" "$scratch/model/model.safetensors"
expect 1 "model.safetensors" "$sinter" generate "$scratch/model" --prompt x
echo "generate: all as expected"
