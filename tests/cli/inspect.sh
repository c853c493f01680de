# Drives inspect on a golden model, on single files and on a checkpoint made here; args: program, scratch folder.
set -euo pipefail
sinter=$1; scratch=$2; here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$scratch"; mkdir -p "$scratch/model"
golden=$here/../golden/models/llama3
cp "$golden"/{config.json,model.safetensors} "$scratch/model/"
cp "$here/../golden/tokenizer/small.model" "$scratch/model/tokenizer.model"
echo '{"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"}' > "$scratch/model/tokenizer_config.json"

"$sinter" inspect "$scratch/model" --json --values > "$scratch/model.json"
"$sinter" inspect "$scratch/model" --summary --json > "$scratch/summary.json"
"$sinter" inspect "$scratch/model/model.safetensors" --json > "$scratch/file.json"
python3 - "$scratch" <<'PY'
import json, struct, sys
scratch = sys.argv[1]
model, summary, file = (json.load(open(f"{scratch}/{n}.json")) for n in ("model", "summary", "file"))
config = json.load(open(f"{scratch}/model/config.json"))
with open(f"{scratch}/model/model.safetensors", "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
header.pop("__metadata__", None)
listed = {t["name"]: t for t in model["tensors"]["list"]}
assert listed.keys() == header.keys()
for name, tensor in header.items():
    begin, end = tensor["data_offsets"]
    assert listed[name]["shape"] == tensor["shape"] and listed[name]["bytes"] == end - begin, name
    assert listed[name]["not_finite"] == 0 and 0 < listed[name]["abs_max"] < 10, listed[name]
assert model["model"]["layers"] == config["num_hidden_layers"] and model["model"]["hidden"] == config["hidden_size"]
assert model["parameters"]["total"] == model["tensors"]["elements"], "the config and the file count differently"
assert model["tokenizer"]["vocab_size"] > 0 and list(model["chat_templates"]) == ["default"]
assert "list" not in summary["tensors"] and summary["tensors"]["count"] == len(header)
assert {t["name"] for t in file["tensors"]["list"]} == header.keys() and file["metadata"] == {"format": "pt"}
PY

text=$("$sinter" inspect "$scratch/model")
for word in llama parameters tensors tokenizer "chat template" model.norm.weight; do
  case "$text" in *"$word"*) ;; *) echo "the report lacks '$word': $text"; exit 1 ;; esac
done

# A checkpoint as the trainer writes it: two pieces of one tensor, inside a folder of checkpoints.
mkdir -p "$scratch/run/step-00000007/state"
cat > "$scratch/run/step-00000007/state/index.json" <<'JSON'
{"format": "sinter state", "version": 1, "step": 7, "updates": 6, "tokens": 7000, "guard": [], "noise_scale": [], "ranks": 2,
 "recipe": "[model]\nlayers = 2\n", "tensors": [{"kind": "master", "name": "norm", "shape": [4], "pieces": [
  {"file": "rank-00000.safetensors", "begin": 0, "count": 2, "hash": "0000000000000001"},
  {"file": "rank-00001.safetensors", "begin": 2, "count": 2, "hash": "0000000000000002"}]}]}
JSON
ln -s step-00000007 "$scratch/run/latest"
case "$("$sinter" inspect "$scratch/run")" in *"step-00000007 (latest)"*"step 7,"*) ;; *) echo "the list of checkpoints is wrong"; exit 1 ;; esac
[ "$("$sinter" inspect "$scratch/run" --recipe)" = "$(printf '[model]\nlayers = 2')" ] || { echo "--recipe prints no recipe"; exit 1; }
if "$sinter" inspect "$golden" --recipe 2> /dev/null; then echo "a recipe of no checkpoint"; exit 1; fi
case "$("$sinter" inspect "$scratch/run/latest")" in *"step 7, 6 optimizer updates, 7,000 tokens, written by 2 ranks"*) ;;
  *) echo "the checkpoint's summary is wrong"; exit 1 ;; esac

# A template that cannot be read is a line of the report; the rest is shown.
cp -r "$scratch/model" "$scratch/odd"
echo '{% for x in y %}' > "$scratch/odd/chat_template.jinja"
case "$("$sinter" inspect "$scratch/odd")" in *"chat template"*"endfor"*model.norm.weight*) ;;
  *) echo "a bad template hides the rest"; exit 1 ;; esac

# What cannot be shown is an error that says so.
head -c 100 "$scratch/model/model.safetensors" > "$scratch/cut.safetensors"
mkdir "$scratch/empty"
for bad in "$scratch/none" "$scratch/cut.safetensors" "$scratch/model.json" "$scratch/empty"; do
  if "$sinter" inspect "$bad" > /dev/null 2> "$scratch/error"; then echo "inspect $bad succeeded"; exit 1; fi
  grep -q "$bad" "$scratch/error" || { echo "the error does not name $bad"; cat "$scratch/error"; exit 1; }
done

echo '{"step": 1}' > "$scratch/metrics.jsonl"
"$sinter" inspect "$scratch/metrics.jsonl" 2> "$scratch/error" && exit 1
grep -q 'sinter plot' "$scratch/error" || { echo "no word of sinter plot"; exit 1; }

# Output that does not arrive is a failure too.
if "$sinter" inspect "$scratch/model" > /dev/full 2> "$scratch/error"; then echo "inspect wrote to a full disk"; exit 1; fi
if "$sinter" --help > /dev/full 2> /dev/null; then echo "help wrote to a full disk"; exit 1; fi
grep -q "cannot write to standard output" "$scratch/error" || { cat "$scratch/error"; exit 1; }
