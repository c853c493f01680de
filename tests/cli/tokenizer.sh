# Drives tokenizer train, encode, decode and inspect; args: program, scratch folder.
set -euo pipefail
sinter=$1; scratch=$2; here=$(cd "$(dirname "$0")" && pwd)
gpt2=$here/../golden/tokenizer/r50k_base.tiktoken
rm -rf "$scratch"; mkdir -p "$scratch"
fail() { echo "$1"; exit 1; }

ids=$(printf 'Hello world<|endoftext|>' | "$sinter" tokenizer encode "$gpt2" - --special)
[ "$ids" = "15496 995 50256" ] || fail "encode --special gave $ids"
ids=$(printf 'Hello world' | "$sinter" tokenizer encode "$gpt2" -)
[ "$ids" = "15496 995" ] || fail "encode gave $ids"
[ "$(printf '' | "$sinter" tokenizer encode "$gpt2" -)" = "" ] || fail "no text has no ids"

head -c 100000 "$sinter" > "$scratch/bytes"  # anything but text
"$sinter" tokenizer encode "$gpt2" "$scratch/bytes" > "$scratch/ids"
[ "$(wc -l < "$scratch/ids")" = 1 ] || fail "the ids are not on one line"
"$sinter" tokenizer decode "$gpt2" "$scratch/ids" | cmp - "$scratch/bytes" || fail "decode did not give the bytes back"

cp "$here/../../README.md" "$scratch/text"
"$sinter" tokenizer train "$scratch/text" --vocab-size 400 --special '<|end|>' --special '<|pad|>' --pattern llama3 --out "$scratch/trained" --json > "$scratch/summary"
grep -q '"vocab_size": 400' "$scratch/summary" || fail "the summary is $(cat "$scratch/summary")"
"$sinter" tokenizer encode "$scratch/trained" "$scratch/text" | "$sinter" tokenizer decode "$scratch/trained" | cmp - "$scratch/text" || fail "round trip"
"$sinter" tokenizer inspect "$scratch/trained" --text 'x<|end|>' --special --json | grep -q '"id": 398' || fail "inspect does not show the special token"

expect() {  # status, words of the message, command...
  local status=$1 words=$2 got=0; shift 2
  "$@" > /dev/null 2> "$scratch/error" || got=$?
  [ "$got" = "$status" ] || fail "'$*' ended with $got, expected $status"
  grep -q "$words" "$scratch/error" || fail "'$*' said: $(cat "$scratch/error")"
}
head -c 5000 "$gpt2" > "$scratch/r50k_base.tiktoken"
head -c 5000 "$scratch/trained/tokenizer.json" > "$scratch/half.json"
echo "1 2 x" > "$scratch/bad_ids"
expect 1 "cut off" "$sinter" tokenizer encode "$scratch/r50k_base.tiktoken" "$scratch/text"
expect 1 "half.json" "$sinter" tokenizer encode "$scratch/half.json" "$scratch/text"
expect 1 "not a token id" "$sinter" tokenizer decode "$gpt2" "$scratch/bad_ids"
expect 2 "did you mean 'gpt2'" "$sinter" tokenizer train "$scratch/text" --pattern gtp2 --out "$scratch/x"
expect 2 "pattern" "$sinter" tokenizer train "$scratch/text" --pattern '(a' --out "$scratch/x"
expect 1 "holds another tokenizer" "$sinter" tokenizer train "$scratch/text" --vocab-size 300 --out "$scratch/trained"
"$sinter" tokenizer train "$scratch/text" --vocab-size 300 --out "$scratch/trained" --force > /dev/null
expect 2 "vocabulary size 10" "$sinter" tokenizer train "$scratch/text" --vocab-size 10 --out "$scratch/x"
expect 2 "given twice" "$sinter" tokenizer train "$scratch/text" --special '<a>' --special '<a>' --out "$scratch/x"
expect 2 "say --special '<b>'" "$sinter" tokenizer train "$scratch/text" --special '<a>' '<b>' --out "$scratch/x"
expect 2 "did you mean '--special'" "$sinter" tokenizer encode "$gpt2" "$scratch/text" --specail
expect 2 "no option '--bogus' of .sinter tokenizer." "$sinter" tokenizer --bogus
expect 2 "did you mean '--vocab-size'" "$sinter" tokenizer train "$scratch/text" --vocab 300 --out "$scratch/x"
expect 2 "TOKENIZER is missing: sinter tokenizer encode \[OPTIONS\] TOKENIZER FILE" "$sinter" tokenizer encode
echo '{"!": 0, "a": 1}' > "$scratch/words.json"
expect 1 "no tokenizer.json: it has no key 'model'" "$sinter" tokenizer inspect "$scratch/words.json"
echo '{"!": 0, "model": 1}' > "$scratch/vocab.json"
expect 1 "words of a tokenizer without its merges; expected tokenizer.json" "$sinter" tokenizer inspect "$scratch/vocab.json"
gzip -c "$scratch/text" > "$scratch/packed.tok"
expect 1 "is compressed, but token shards are read as they lie on disk: gzip -d" "$sinter" data inspect "$scratch/packed.tok"
expect 1 "there is no file 'Hello'; - reads standard input" "$sinter" tokenizer encode "$gpt2" Hello
expect 2 "template is given without a value" "$sinter" train --template
# A special token does not take the file behind it along.
"$sinter" tokenizer train --out "$scratch/after" --vocab-size 300 --special '<|end|>' "$scratch/text" > /dev/null

# Shards: an output needs a name, a source needs text, and limits are told in few words.
expect 2 "has no file name" "$sinter" data tokenize "$scratch/text" -t "$scratch/trained" -o "$scratch/"
: > "$scratch/empty.txt"
expect 1 "empty.txt" "$sinter" data tokenize "$scratch/empty.txt" -t "$scratch/trained" -o "$scratch/shard"
expect 2 "0 given; expected 1 or more" \
  "$sinter" data tokenize "$scratch/text" -t "$scratch/trained" -o "$scratch/shard" --shard-tokens 0
expect 2 "expected 0 or more" "$sinter" data batches recipe.toml -o "$scratch/batches" --first -1
