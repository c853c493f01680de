#!/usr/bin/env bash
# The data pipeline's verbs as a user runs them: models in a run, mixes, curricula, token files, a look at documents.
set -euo pipefail
sinter=$1 scratch=$2
here=$(cd "$(dirname "$0")/.." && pwd)
golden=$here/golden/eval
rm -rf "$scratch"; mkdir -p "$scratch"; cd "$scratch"
fail() { echo "data.sh: $*"; exit 1; }
python3 - <<'P'
import json, random
rng = random.Random(5)
nice = "the garden has many flowers and the people of the town walk to it with their dogs in the morning".split()
rude = "bad rotten nasty gross filthy slime the and of to with that have".split()
def text(words, n):
    return " ".join(" ".join(rng.choice(words) + rng.choice(["", "s", "a", "er"]) for _ in range(11)).capitalize() + " the and." for _ in range(n))
with open("docs.jsonl", "w") as f, open("train.txt", "w") as t:
    for i in range(120):
        words = rude if i % 4 == 0 else nice
        f.write(json.dumps({"id": str(i), "text": text(words, 8 + i % 5)}) + "\n")
        t.write(("__label__rude " if words is rude else "__label__nice ") + text(words, 2) + "\n")
P
python3 - "$golden/data/copa/validation.jsonl" <<'P'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
longest = max(rows, key=lambda r: len(r["premise"] + r["choice1"]))
right = longest["choice2"] if longest["label"] else longest["choice1"]
leak = longest["premise"][:-1] + (" because " if longest["question"] == "cause" else " therefore ") + right[0].lower() + right[1:]
first = json.loads(open("docs.jsonl").readline())
open("leak.jsonl", "w").write(json.dumps({"id": "leak", "text": "Once " + leak + " The end."}) + "\n" + json.dumps({"id": "clean", "text": "Nothing to see here at all."}) + "\n")
P
"$sinter" data rank train train.txt -o rude.bin --epochs 60 --lr 0.5 --dim 10 --bucket 1000 > /dev/null
"$sinter" data decontaminate leak.jsonl --tasks copa --data "$golden/data" --ngram 6 -o clean.jsonl > /dev/null
[ "$(grep -c . clean.jsonl)" = 1 ] && grep -q '"clean"' clean.jsonl || fail "the evaluation item was not found: $(cat clean.jsonl)"

cat > p.toml <<'T'
[run]
output = "out"
[[input]]
path = "docs.jsonl"
[filter]
gopher_repetition = false
c4 = false
fineweb = false
nsfw_model = "rude.bin"
nsfw_label = "__label__rude"
[dedup]
minhash = false
[decontaminate]
tasks = ["copa"]
T
echo "data = \"$golden/data\"" >> p.toml
"$sinter" data run p.toml --json > run.json
python3 - <<'P'
import json
report = json.load(open("run.json"))
assert report["dropped"]["nsfw/above_threshold"] == 30 and report["kept"] == 90, report
P
"$sinter" data run p.toml run.output=best "rank.sinter=$golden/models/tiny-gpt2" rank.keep=.5 --json > best.json
python3 - <<'P'
import glob, json, subprocess
report = json.load(open("best.json"))
assert report["kept"] == 45 and report["dropped"]["rank/below_percentile"] == 45, report
P
if "$sinter" data run p.toml run.output=x rank.keep=.5 2> error; then fail "nothing to rank by was accepted"; fi
grep -q "nothing to rank by" error || fail "$(cat error)"

# Mixes: shares of the text, and an order by length.
head -30 docs.jsonl > a.jsonl; tail -90 docs.jsonl > b.jsonl
"$sinter" data mix a.jsonl=.5 b.jsonl=.5 --weights -o mixed.jsonl --json > mix.json
python3 - <<'P'
import json
a, b = json.load(open("mix.json"))
assert abs(a["share"] - .5) < 1e-9 and abs(a["epochs"] - 1) < 1e-9 and .2 < b["epochs"] < .5, (a, b)
P
"$sinter" data mix a.jsonl b.jsonl --temperature 1 --order -length -o long.jsonl > /dev/null
python3 - <<'P'
import json
sizes = [len(json.loads(line)["text"]) for line in open("long.jsonl")]
assert len(sizes) == 120 and sizes == sorted(sizes, reverse=True)
P
if "$sinter" data mix a.jsonl -o x.jsonl 2> error; then fail "a source without a number was accepted"; fi

# Columns beside the documents, and cuts by them without reading the rules again.
"$sinter" data stats docs.jsonl -o columns.jsonl.zst > /dev/null
"$sinter" data cut docs.jsonl --columns columns.jsonl.zst --where 'words >= 120' --best words=.5 -o long.jsonl --json > cut.json
python3 - <<'P'
import json
cut = json.load(open("cut.json"))
assert cut["documents"] == 120 and cut["written"] + sum(cut["dropped"].values()) == 120 and 0 < cut["written"] < 120, cut
assert all(len(json.loads(line)["text"].split()) >= 110 for line in open("long.jsonl"))
P
"$sinter" data cut out/documents --columns out/columns --where 'nsfw_score < 0.5' -o soft.jsonl > /dev/null
[ "$(grep -c . soft.jsonl)" = 90 ] || fail "a cut of a run's documents by its columns: $(grep -c . soft.jsonl)"
if "$sinter" data cut docs.jsonl --where 'wordz > 3' -o x.jsonl 2> error; then fail "an unknown column was accepted"; fi
grep -q "wordz" error || fail "$(cat error)"

# n-gram models: trained here, applied, and in a run. The garden's text is likelier for a model of the garden.
grep -v slime docs.jsonl > nice.jsonl
"$sinter" data rank ngrams nice.jsonl -o nice.arpa --order 3 --prune 0,0,1 > /dev/null
"$sinter" data rank apply docs.jsonl --arpa nice.arpa --keep .5 -o best.jsonl > /dev/null
[ "$(grep -c slime best.jsonl)" = 0 ] && [ "$(grep -c . best.jsonl)" = 60 ] || fail "the n-gram model does not rank"
"$sinter" data rank apply docs.jsonl --sinter "$golden/models/tiny-gpt2" --keep .25 -o few.jsonl > /dev/null
grep -q '"perplexity":' few.jsonl && [ "$(grep -c . few.jsonl)" = 30 ] || fail "a trained model does not rank"
if "$sinter" data rank apply docs.jsonl --arpa nice.arpa --sinter x -o x.jsonl 2> error; then fail "two models were accepted"; fi

# A run's shards have their tokenizer beside them, and its manifest the digests of all files.
"$sinter" data run p.toml run.output=tokens tokenize.tokenizer="$golden/models/tiny-gpt2" > /dev/null
"$sinter" data inspect tokens/tokens --show 1 | grep -q "document 0" || fail "no tokenizer beside the shards"
python3 - <<'P'
import hashlib, json
manifest = json.load(open("tokens/manifest.json"))
files = [f for part in manifest["parts"] for f in part["files"]]
assert len(files) == 2 and manifest["tokenizer"]["vocab_size"] > 0, manifest
for f in files:
    assert hashlib.sha256(open("tokens/" + f["file"], "rb").read()).hexdigest() == f["sha256"], f
P
"$sinter" data report tokens --html report.html > /dev/null
grep -q "<h2>Samples" report.html || fail "the report shows no samples"

# Token files there and back.
"$sinter" data tokenize docs.jsonl -t "$golden/models/tiny-gpt2" -o t.tok > /dev/null
"$sinter" data shards t.tok t.bin > /dev/null
"$sinter" data shards t.bin t.ds > /dev/null
"$sinter" data shards t.ds back.tok --tokenizer "$golden/models/tiny-gpt2" > /dev/null
cmp t.tok back.tok || fail "a shard is another one after its way through .bin and .ds"
"$sinter" data preview docs.jsonl -n 2 --characters 20 | grep -c '^---' | grep -qx 2 || fail "preview does not show two documents"
echo ok
