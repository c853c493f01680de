# Drives `sinter serve` over loopback on a golden model with a tokenizer trained here; args: program, scratch folder,
# and the script that asks, with its options (default: serve_test.py).
set -euo pipefail
sinter=$1; scratch=$2; here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$scratch"; mkdir -p "$scratch/model"
cp "$here"/../golden/models/llama/{config.json,model.safetensors} "$scratch/model/"
sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 8192/' "$scratch/model/config.json"  # rotary positions go on
head -c 200000 "$here/../../data/stories/train.txt" > "$scratch/text.txt"
"$sinter" tokenizer train "$scratch/text.txt" --vocab-size 500 --special '<|endoftext|>' --out "$scratch/model" >/dev/null
printf '%s' "{# <think> #}{% if tools %}<tool_call> {{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}" > "$scratch/chat.jinja"
export SINTER_THREADS=${SINTER_THREADS:-1}  # the model is tiny; threads that wait for each other on a busy machine take seconds a step
script=${3:-serve_test.py}; shift $(($# < 3 ? $# : 3))
exec python3 "$here/../$script" "$sinter" "$scratch/model" "$scratch/chat.jinja" "$@"
