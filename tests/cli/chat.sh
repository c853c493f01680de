# Drives `sinter chat` and generate's ways in on a golden model; args: program, scratch folder.
set -euo pipefail
sinter=$1; scratch=$2; here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$scratch"; mkdir -p "$scratch/run/step-1"
cp "$here"/../golden/models/llama/{config.json,model.safetensors} "$scratch/run/step-1/"
sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 1000000/' "$scratch/run/step-1/config.json"
head -c 200000 "$here/../../data/stories/train.txt" > "$scratch/text.txt"
"$sinter" tokenizer train "$scratch/text.txt" --vocab-size 500 --special '<|endoftext|>' --out "$scratch/run/step-1" >/dev/null
ln -s step-1 "$scratch/run/latest"
model=$scratch/run  # a training run's folder: its newest model

one=$("$sinter" generate "$model" --prompt "Once upon" --max-tokens 12 --seed 5 --ignore-eos 2> "$scratch/said")
grep -q "its newest model" "$scratch/said" || { cat "$scratch/said"; exit 1; }
[ "$(printf 'Once upon' | "$sinter" generate "$model" --prompt - --max-tokens 12 --seed 5 --ignore-eos --threads 1)" = "$one" ] || { echo "--prompt - differs"; exit 1; }
printf 'Once upon' > "$scratch/prompt.txt"
[ "$("$sinter" generate "$model" --file "$scratch/prompt.txt" --max-tokens 12 --seed 5 --ignore-eos)" = "$one" ] || { echo "--file differs"; exit 1; }
stop=${one: -3}
case "$("$sinter" generate "$model" --prompt "Once upon" --max-tokens 12 --seed 5 --ignore-eos --stop "$stop")" in *"$stop"*) echo "the stop text is there"; exit 1 ;; esac
printf '%s\n' "{\"prompt\": \"Once upon\", \"max_tokens\": 12, \"seed\": 5, \"stop\": [\"$stop\"], \"repetition_penalty\": 1.0}" > "$scratch/in.jsonl"
"$sinter" generate "$model" --input "$scratch/in.jsonl" --ignore-eos | grep -q '"finish_reason":"stop"' || { echo "\"stop\" in a line is not heeded"; exit 1; }
exec python3 "$here/../chat_test.py" "$sinter" "$model" "$scratch"
