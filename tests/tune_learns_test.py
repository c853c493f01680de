"""GRPO teaches sums: a small model is trained on two-digit sums most of which are one too large, then tuned on whether an answer is exactly right.
Before, under 40 % of its sampled answers are right; after, over 80 %, on pairs that tuning never saw. Then DPO, from the same model, on the right
answer and the one too large: it holds over 75 % of the pairs that it never saw the right way round. Minutes on two cores.

usage: tune_learns_test.py SINTER SCRATCH_FOLDER
"""
import json, os, random, shutil, subprocess, sys, time

sinter, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
shutil.rmtree(folder, ignore_errors=True)
os.makedirs(folder)
os.chdir(folder)
draw = random.Random(20)
pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
draw.shuffle(pairs)
held_out, tuned_on = pairs[:256], pairs[256:]


def rows(name, those):
    with open(name, "w") as out:
        for a, b in those:
            out.write(json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) + "\n")


def run(*command):
    print("$ sinter", *command, flush=True)
    subprocess.run([sinter, *command], check=True)


def reward(metrics):
    with open(metrics) as lines:
        return [json.loads(line)["reward"] for line in lines]


with open("text.jsonl", "w") as out:
    for _ in range(30):
        for a, b in pairs:
            too_large = 0 if draw.random() < 0.35 else 1
            out.write(json.dumps({"text": f"{a}+{b}={a + b + too_large}"}) + "\n")
rows("sums.jsonl", tuned_on)
rows("held_out.jsonl", held_out)
with open("base.toml", "w") as out:
    out.write("""[model]
family = "llama"
hidden = 96
layers = 2
heads = 4
ffn = 256
vocab_size = 257
max_positions = 128
[data]
sources = "text.jsonl"
tokenizer = "tok"
sequence_length = 120
packing = "documents"
[train]
steps = 3000
micro_batch = 32
precision = "bf16"
[optimizer]
lr = 3e-3
weight_decay = 0.01
[schedule]
kind = "cosine"
warmup = 60
[checkpoint]
dir = "base"
""")
with open("grpo.toml", "w") as out:
    out.write("""[model]
path = "base/latest"
[adapter]
kind = "full"
[data]
sources = "sums.jsonl"
sequence_length = 16
[tune]
prompts = 32
group = 8
max_new_tokens = 5
rewards = ["exact"]
rl_loss = "dapo"
clip_high = 0.28
[train]
steps = 150
micro_batch = 128
[optimizer]
lr = 2e-4
weight_decay = 0.0
[schedule]
kind = "constant"
[checkpoint]
dir = "tuned"
""")
def pairs_of(name, those):
    with open(name, "w") as out:
        for a, b in those:
            out.write(json.dumps({"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + 1)}) + "\n")


with open("dpo.toml", "w") as out:
    out.write("""[model]
path = "base/latest"
[data]
sources = "pairs.jsonl"
validation = "held_out_pairs.jsonl"
sequence_length = 32
[train]
steps = 200
micro_batch = 16
[optimizer]
lr = 1e-3
weight_decay = 0.0
[schedule]
kind = "constant"
[checkpoint]
dir = "preferred"
[log]
eval_every = 100
eval_batches = 64
""")
pairs_of("pairs.jsonl", tuned_on[:2048])
pairs_of("held_out_pairs.jsonl", held_out)
run("tokenizer", "train", "text.jsonl", "--vocab-size", "257", "--out", "tok")
run("train", "base.toml", "-q")
# One step at a rate of next to nothing tells what a model's sampled answers are worth.
measure = ["data.sources=held_out.jsonl", "tune.prompts=256", "tune.group=4", "train.steps=1", "optimizer.lr=1e-12", "-q"]
run("tune", "grpo", "grpo.toml", "checkpoint.dir=before", *measure)
begin = time.time()
run("tune", "grpo", "grpo.toml", "-q")
seconds = time.time() - begin
run("tune", "grpo", "grpo.toml", "model.path=tuned/latest", "checkpoint.dir=after", *measure)
before, after, errors = reward("before/metrics.jsonl")[0], reward("after/metrics.jsonl")[0], None
with open("tuned/metrics.jsonl") as lines:
    errors = json.loads(lines.readline())["ratio_error"]
print(f"exact answers on held-out sums: {before:.1%} before, {after:.1%} after, tuned in {seconds:.0f} s")
assert before < 0.4, before
assert after > 0.8, after
assert errors == 0, f"the first step's ratios are 1 on a CPU, found a mean distance of {errors}"

run("tune", "dpo", "dpo.toml", "-q")
with open("preferred/metrics.jsonl") as lines:
    accuracy = [line["validation_accuracy"] for line in map(json.loads, lines) if "validation_loss" in line][-1]
print(f"held-out pairs the right way round: {accuracy:.1%}")
assert accuracy > 0.75, accuracy
