#!/usr/bin/env python3
"""What a tuning run tells on the way, on a tiny model: samples, scores on tasks, and an early end.

usage: tune_run_test.py SINTER
"""
import json, math, os, shutil, subprocess, sys, tempfile

from tune_verbs_test import write_inputs

sinter = os.path.abspath(sys.argv[1])
RECIPE = """
[model]
path = "model"
[adapter]
kind = "full"
[data]
sources = "chats.jsonl"
validation_share = 0.2
sequence_length = 64
[train]
steps = 6
micro_batch = 2
[optimizer]
lr = 1e-3
[checkpoint]
dir = "run"
[log]
sample_prompts = ["Say number 3."]
sample_every = 3
sample_tokens = 4
[eval]
tasks = ["mine.toml"]
every = 2
"""


def run(*command, fails=False):
    done = subprocess.run([sinter, *command], capture_output=True, text=True, timeout=300)
    assert (done.returncode != 0) == fails, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def metrics(folder):
    return [json.loads(line) for line in open(folder + "/metrics.jsonl")]


with tempfile.TemporaryDirectory() as folder:
    write_inputs(folder)
    os.chdir(folder)
    with open("sft.toml", "w") as out:
        out.write(RECIPE)

    told = run("tune", "sft", "sft.toml", "-q")
    assert "step 3: Say number 3." in told and "step 6: Say number 3." in told, told
    assert "step 4, mine/acc" in told, told
    scores = {line["step"]: line["mine/acc"] for line in metrics("run") if "mine/acc" in line}
    assert sorted(scores) == [2, 4, 6], scores
    # The checkpoint's own scores, by `sinter eval`, and the samples that `compare` reads.
    report = subprocess.run([sinter, "eval", "mine.toml", "run/latest", "--json"], capture_output=True, text=True, check=True).stdout
    own = json.loads(report)["results"]["mine"]
    assert abs(own["acc,none"] - scores[6]) < 1e-12, (own, scores)
    assert "mine" in run("eval", "compare", "run/eval/step-00000002", "run/eval/step-00000006")
    # Trying changes nothing of what is learned.
    run("tune", "sft", "sft.toml", "-q", "eval.tasks=[]", "eval.every=0", "log.sample_every=0", "checkpoint.dir=plain")
    assert open("run/latest/model.safetensors", "rb").read() == open("plain/latest/model.safetensors", "rb").read()

    # What cannot be tried is told before the first step.
    os.rename("mine.jsonl", "gone.jsonl")
    told = run("tune", "sft", "sft.toml", "-q", "checkpoint.dir=none", fails=True)
    assert "mine.jsonl" in told and not os.path.exists("none/metrics.jsonl"), told
    os.rename("gone.jsonl", "mine.jsonl")
    told = run("tune", "sft", "sft.toml", "-q", "checkpoint.dir=none", "eval.tasks=humaneval", fails=True)
    assert "eval.allow_code" in told, told
    told = run("tune", "reward", "sft.toml", "-q", "checkpoint.dir=none", "data.sources=pairs.jsonl", fails=True)
    assert "eval.tasks" in told, told

    # An end when the validation loss no longer falls: at so low a rate it never does.
    told = run("tune", "sft", "sft.toml", "checkpoint.dir=early", "train.steps=40", "optimizer.lr=1e-30", "log.eval_every=1", "train.patience=3")
    assert "stopped early: 3 validations without a loss below" in told and len(metrics("early")) == 4, told
    assert os.readlink("early/best") == "step-00000001"

    # Of a model of which only the shape is there: drawn at random, its linear layers in NF4.
    os.mkdir("shape")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy("model/" + name, "shape/" + name)
    keys = ["model.path=shape", "adapter.kind=qlora", "eval.tasks=[]", "eval.every=0", "train.steps=2", "checkpoint.dir=drawn"]
    run("tune", "sft", "sft.toml", *keys, fails=True)  # there are no weights
    told = run("tune", "sft", "sft.toml", *keys, "model.random=true")
    assert "frozen, in few bits" in told and abs(metrics("drawn")[0]["loss"] - math.log(512)) < 0.5, told
    told = run("tune", "ppo", "sft.toml", *keys, "model.random=true", "adapter.kind=full", "data.sources=sums.jsonl", "data.validation_share=0", "tune.max_new_tokens=8", fails=True)
    assert "model.random" in told, told
    # A recipe for a GPU is planned without one, whatever memory this machine has: QLoRA of a 70B shape.
    with open("shape/config.json", "w") as out:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
                   "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
                   "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
                   "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}, out)
    told = run("tune", "sft", "sft.toml", *keys, "model.random=true", "train.device=cuda", "train.precision=bf16", "train.recompute=full",
               "data.sequence_length=2048", "train.micro_batch=1", "--dry-run", "--json")
    planned = json.loads(told[told.index("{"):told.rindex("}") + 1])["memory_bytes"]
    assert 35 < planned["weights (frozen, in few bits)"] / 2**30 < 37 and 40 < planned["all"] / 2**30 < 60, planned
print("ok")
