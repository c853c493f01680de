# Drives `data batches`: what it writes is what the trainer reads, step by step; args: program, scratch folder.
set -euo pipefail
sinter=$1; scratch=$2
rm -rf "$scratch"; mkdir -p "$scratch"; cd "$scratch"
python3 - <<'PY'
import random
rng = random.Random(3)
words = "the cat dog sat ran on a mat hill big red and then it was happy".split()
for name, count in (("text.txt", 300), ("held.txt", 20)):
    with open(name, "w") as out:
        out.write("<|endoftext|>".join(" ".join(rng.choice(words) for _ in range(rng.randint(5, 60))) for _ in range(count)))
PY
"$sinter" tokenizer train text.txt --out tok --vocab-size 300 > /dev/null 2>&1
cat > recipe.toml <<'TOML'
[model]
family = "llama"
hidden = 16
layers = 1
heads = 2
[data]
sources = "text.txt"
validation = "held.txt"
tokenizer = "tok"
sequence_length = 32
packing = "stream"
shuffle = false
[train]
steps = 5
micro_batch = 2
batch_tokens = 128
[checkpoint]
dir = "run"
TOML
"$sinter" data batches recipe.toml -o all.safetensors
"$sinter" data batches recipe.toml -o some.safetensors --first 2 --steps 2
"$sinter" data batches recipe.toml -o held.safetensors --validation
"$sinter" data tokenize text.txt -t tok -o text.tok > /dev/null
if "$sinter" data batches recipe.toml -o none.safetensors --first 5 2> error.txt; then exit 1; fi
grep -q "5 steps" error.txt
python3 - <<'PY'
import array, json, struct
def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    tensors = {}
    for name in ("tokens", "targets"):
        begin, end = header[name]["data_offsets"]
        rows, columns = header[name]["shape"]
        values = array.array("i", data[begin:end])
        tensors[name] = [list(values[r * columns:(r + 1) * columns]) for r in range(rows)]
    return tensors
everything, some, held = (read(n + ".safetensors") for n in ("all", "some", "held"))
assert len(everything["tokens"]) == 5 * 2 and len(everything["tokens"][0]) == 64
assert some["tokens"] == everything["tokens"][4:8] and some["targets"] == everything["targets"][4:8]
assert held["tokens"]
raw = open("text.tok", "rb").read()
stored = list(array.array("H", raw[64:64 + 2 * 32 * 4]))
flat = [t for row in everything["tokens"] for t in row]
assert flat[:128] == stored, "not shuffled, so the first windows are the shard's first tokens"
targets = [t for row in everything["targets"] for t in row]
for i in range(127):
    if (i + 1) % 32: assert targets[i] == flat[i + 1], i
PY
