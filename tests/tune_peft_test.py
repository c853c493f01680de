#!/usr/bin/env python3
"""SFT beside PEFT on real rows: the same adapter to begin with, the same batches, and the two curves of training and validation loss
have to stay within 1 % of each other; then each program reads the other's adapter. Exit status 77 where PEFT is not installed.

usage: tune_peft_test.py SINTER MODEL ROWS SCRATCH [COUNT]      MODEL: a Hugging Face folder; ROWS: Alpaca rows (.json), of which
                                                               COUNT are trained on (480)
"""
import importlib.util, json, math, os, shutil, subprocess, sys

if not all(importlib.util.find_spec(name) for name in ("peft", "torch", "transformers")):
    print("PEFT is not installed: left out")
    sys.exit(77)
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

sinter, model_folder, rows_file, folder = (os.path.abspath(path) for path in sys.argv[1:5])
ROWS, HELD_OUT, LENGTH, BATCH, EVERY, LR = int(sys.argv[5]) if len(sys.argv) > 5 else 480, 64, 256, 8, 10, 1e-3
shutil.rmtree(folder, ignore_errors=True)
os.makedirs(folder)
os.chdir(folder)
torch.manual_seed(7)
torch.set_num_threads(len(os.sched_getaffinity(0)))
tokenizer = PreTrainedTokenizerFast(tokenizer_file=model_folder + "/tokenizer.json", clean_up_tokenization_spaces=False)
eos = json.load(open(model_folder + "/config.json"))["eos_token_id"]


def prompt_of(row):
    more = ", paired with an input that provides further context" if row["input"] else ""
    text = f"Below is an instruction that describes a task{more}. Write a response that appropriately completes the request.\n\n"
    text += f"### Instruction:\n{row['instruction']}"
    return text + (f"\n\n### Input:\n{row['input']}" if row["input"] else "") + "\n\n### Response:\n"


def tokens_of(row):
    prompt, answer = tokenizer(prompt_of(row)).input_ids, tokenizer(row["output"], add_special_tokens=False).input_ids + [eos]
    return prompt + answer, [-100] * len(prompt) + answer


usable = [row for row in json.load(open(rows_file)) if len(tokens_of(row)[0]) <= LENGTH]
train_rows, held_out = usable[:ROWS], usable[ROWS:ROWS + HELD_OUT]
assert len(train_rows) == ROWS and len(held_out) == HELD_OUT
for name, rows in (("train", train_rows), ("valid", held_out)):
    with open(name + ".jsonl", "w") as out:
        out.writelines(json.dumps({key: row[key] for key in ("instruction", "input", "output")}) + "\n" for row in rows)


def loss_of(model, rows):
    """Sum over the answers' tokens, and how many those are."""
    pairs = [tokens_of(row) for row in rows]
    longest = max(len(ids) for ids, _ in pairs)
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in pairs])
    labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in pairs])
    logits = model(input_ids=ids, attention_mask=(torch.arange(longest) < torch.tensor([[len(i)] for i, _ in pairs])).long()).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")
    return loss, int((labels[:, 1:] != -100).sum())


@torch.no_grad()
def validate(model):
    model.eval()
    parts = [loss_of(model, held_out[i:i + BATCH]) for i in range(0, HELD_OUT, BATCH)]
    model.train()
    return sum(loss.item() for loss, _ in parts) / sum(count for _, count in parts)


base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"))
model.save_pretrained("initial")
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
model.train()
theirs, theirs_valid = [], []
for step in range(ROWS // BATCH):
    loss, count = loss_of(model, train_rows[step * BATCH:(step + 1) * BATCH])
    (loss / count).backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    theirs.append(loss.item() / count)
    if (step + 1) % EVERY == 0:
        theirs_valid.append(validate(model))
model.save_pretrained("theirs")

with open("sft.toml", "w") as out:
    out.write(f"""[model]
path = "{model_folder}"
[adapter]
from = "initial"
[data]
sources = "train.jsonl"
validation = "valid.jsonl"
sequence_length = {LENGTH}
shuffle = false
[tune]
packing = false
epochs = 1
[train]
micro_batch = {BATCH}
[optimizer]
lr = {LR}
weight_decay = 0.0
[schedule]
kind = "constant"
[checkpoint]
dir = "run"
[log]
eval_every = {EVERY}
eval_batches = {HELD_OUT // BATCH}
""")
subprocess.run([sinter, "tune", "sft", "sft.toml", "-q"], check=True)
lines = [json.loads(line) for line in open("run/metrics.jsonl")]
ours, ours_valid = [line["loss"] for line in lines], [line["validation_loss"] for line in lines if "validation_loss" in line]
assert len(ours) == len(theirs) and len(ours_valid) == len(theirs_valid), (len(ours), len(theirs), len(ours_valid), len(theirs_valid))
apart = max(abs(a / b - 1) for a, b in zip(ours, theirs))
apart_valid = max(abs(a / b - 1) for a, b in zip(ours_valid, theirs_valid))
print(f"validation loss {theirs_valid[0]:.4f} after {EVERY} steps, {theirs_valid[-1]:.4f} after {len(ours)} (PEFT); {ours_valid[-1]:.4f} (sinter)")
print(f"largest distance: training loss {apart:.2e}, validation loss {apart_valid:.2e}")
assert ours_valid[-1] < 0.95 * ours_valid[0], "nothing was learned"
assert apart < 0.01 and apart_valid < 0.01

# PEFT reads our adapter; we read theirs, with a step at a rate of next to nothing.
base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
again = validate(PeftModel.from_pretrained(base, "run/latest"))
subprocess.run([sinter, "tune", "sft", "sft.toml", "-q", "adapter.from=theirs", "checkpoint.dir=read", "train.steps=1", "optimizer.lr=1e-12"], check=True)
read = [json.loads(line) for line in open("read/metrics.jsonl")][-1]["validation_loss"]
print(f"our adapter in PEFT: validation loss {again:.6f} beside {ours_valid[-1]:.6f}; theirs here: {read:.6f} beside {theirs_valid[-1]:.6f}")
assert math.isclose(again, ours_valid[-1], rel_tol=1e-4) and math.isclose(read, theirs_valid[-1], rel_tol=1e-4)
