# Drives `sinter batch` on a golden model; args: program, scratch folder.
set -euo pipefail
sinter=$1; scratch=$2; here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$scratch"; mkdir -p "$scratch/model"
cp "$here"/../golden/models/llama/{config.json,model.safetensors} "$scratch/model/"
sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 1000000/' "$scratch/model/config.json"
head -c 200000 "$here/../../data/stories/train.txt" > "$scratch/text.txt"
"$sinter" tokenizer train "$scratch/text.txt" --vocab-size 500 --special '<|endoftext|>' --out "$scratch/model" >/dev/null
exec python3 "$here/../batch_test.py" "$sinter" "$scratch"
