#!/usr/bin/env python3
"""Every verb of `sinter tune` on a tiny model: killed at random moments it ends with the unbroken run's bits, and on several ranks it
has the losses of one.

Usage: tune_verbs_test.py SINTER kill KILLS      kill -9, so often for each verb
       tune_verbs_test.py SINTER ranks N         mpirun -n N against one rank: losses and gradient norms within 1e-6
       tune_verbs_test.py SINTER layouts N       adapters under tensor, pipeline, context and expert parallelism on N ranks or fewer
"""
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RECIPE = """
[model]
path = "model"
[data]
sources = "{data}"
sequence_length = 64
[tune]
prompts = 4
group = 4
max_new_tokens = 6
iterations = 2
rewards = ["length"]
kl = 0.05
[train]
steps = {steps}
micro_batch = 2
batch_tokens = 512
threads = 1
[optimizer]
lr = 1e-3
[schedule]
kind = "constant"
[adapter]
rank = 4
dropout = 0.1
[checkpoint]
every = 2
"""
VERBS = {
    "sft": ("sft", "chats.jsonl", []),
    "sft-tasks": ("sft", "chats.jsonl", ["eval.tasks=mine.toml", "eval.every=2"]),
    "sft-qlora": ("sft", "chats.jsonl", ["adapter.kind=qlora", "optimizer.states=8bit"]),
    "sft-noise": ("sft", "chats.jsonl", ["tune.neftune_alpha=5"]),
    "sft-teacher": ("sft", "chats.jsonl", ["tune.teacher=model", "tune.teacher_weight=0.5"]),
    "dpo": ("dpo", "pairs.jsonl", []),
    "kto": ("dpo", "labelled.jsonl", ["tune.loss=kto"]),
    "orpo": ("dpo", "pairs.jsonl", ["tune.loss=orpo"]),
    "reward": ("reward", "pairs.jsonl", []),
    "ppo": ("ppo", "sums.jsonl", ["adapter.dropout=0"]),
    "ppo-full": ("ppo", "sums.jsonl", ["adapter.kind=full"]),
    "grpo": ("grpo", "sums.jsonl", ["adapter.dropout=0", "tune.advantages=batch"]),
}
# Models of other shapes beside the policy model, with the same tokenizer.
OTHER_MODELS = ("gpt2", "mistral", "qwen3", "mixtral")
# Verb and keys of a run, then layouts that must give the losses and the adapter of one rank.
LAYOUTS = [
    ("sft", [], ["tp=2", "tp=2 sequence_parallel=true", "tp=4", "tp=2 zero=3", "pp=2", "pp=2 schedule=zb-h1", "cp=2", "cp=2 context=gather",
                 "tp=2 pp=2", "tp=2 cp=2", "pp=2 cp=2"]),
    ("sft", ["adapter.dropout=0.1"], ["pp=2", "pp=2 schedule=zb-h1"]),
    ("sft", ["train.recompute=full", "train.precision=bf16"], ["tp=2", "pp=2", "cp=2"]),
    ("sft", ["adapter.kind=rslora", "adapter.modules_to_save=['lm_head','embed_tokens']", "model.path=mistral"], ["tp=2", "tp=2 pp=2"]),
    ("sft", ["model.path=qwen3"], ["tp=2"]),
    ("sft", ["model.path=gpt2"], ["tp=2", "tp=4", "pp=3", "cp=2"]),
    ("sft", ["model.path=mistral"], ["tp=2", "tp=4 sequence_parallel=true"]),
    ("sft", ["model.path=mixtral", "adapter.targets=['q_proj','v_proj','o_proj']"], ["tp=2", "ep=2", "pp=2 ep=2"]),
    ("sft", ["adapter.kind=dora"], ["pp=2", "cp=2"]),
    ("sft-qlora", [], ["pp=2", "cp=2"]),
    ("sft-noise", [], ["tp=2", "tp=2 sequence_parallel=true", "pp=2", "cp=2"]),
    ("dpo", [], ["tp=2", "tp=4"]),
]
# Layouts that are refused, with what the message must name.
REFUSED = [
    ("sft", ["adapter.dropout=0.1"], "tp=2", "parallel.pp = 2"),
    ("sft", ["adapter.dropout=0.1"], "cp=2", "parallel.pp = 2"),
    ("sft", ["adapter.kind=dora"], "tp=2", "parallel.pp = 2"),
    ("sft-qlora", [], "tp=2", "parallel.pp = 2"),
    ("sft", ["optimizer.states=8bit"], "tp=2", "parallel.tp and ep 1"),
    ("sft", ["optimizer.states=8bit"], "zero=1", "parallel.zero = 0"),
    ("sft", ["adapter.targets=['embed_tokens','q_proj']"], "tp=2", "parallel.pp = 2"),
    ("dpo", [], "pp=2", "parallel.pp and cp 1"),
    ("sft-teacher", [], "cp=2", "parallel.pp and cp 1"),
    ("reward", [], "tp=2", "parallel.zero"),
    ("ppo", [], "tp=2", "parallel.tp, pp, cp and ep 1"),
    ("grpo", [], "pp=2", "parallel.tp, pp, cp and ep 1"),
]
# What KTO takes the divergence over is a micro-batch, as TRL's is: it depends on the ranks.
NOT_ON_RANKS = {"kto"}


def write_inputs(folder):
    golden = os.path.join(HERE, "golden", "tune", "models")
    shutil.copytree(os.path.join(golden, "policy"), os.path.join(folder, "model"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(golden, "tokenizer", name), os.path.join(folder, "model", name))
    for other in OTHER_MODELS:
        shutil.copytree(os.path.join(HERE, "golden", "models", other), os.path.join(folder, other))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(golden, "tokenizer", name), os.path.join(folder, other, name))
    rng = random.Random(3)
    chat = lambda role, content: {"role": role, "content": content}
    rows = {"chats": [], "pairs": [], "labelled": [], "sums": []}
    for i in range(24):
        question, good, bad = [chat("user", f"Say number {i}.")], [chat("assistant", f"The number is {i}.")], [chat("assistant", f"No, {i}!")]
        rows["chats"].append({"messages": question + [chat("assistant", "ab" * rng.randint(1, 9) + str(i))]})
        rows["pairs"].append({"prompt": question, "chosen": good, "rejected": bad})
        rows["labelled"].append({"prompt": question, "completion": good if i % 2 else bad, "label": bool(i % 2)})
        rows["sums"].append({"prompt": f"{i}+1=", "answer": str(i + 1)})
    for name, lines in rows.items():
        with open(os.path.join(folder, name + ".jsonl"), "w") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
    with open(os.path.join(folder, "mine.jsonl"), "w") as out:
        out.writelines(json.dumps({"number": i, "options": [f"is {i}", f"is {i + 1}", "ab"], "right": i % 3}) + "\n" for i in range(24))
    with open(os.path.join(folder, "mine.toml"), "w") as out:
        out.write('task = "mine"\nkind = "multiple_choice"\ncontext = "The number {{number}}"\nchoices = "options"\ntarget = "right"\n'
                  'metrics = ["acc"]\n[data]\ntest = "mine.jsonl"\n')


def start(folder, sinter, name, run, steps, ranks=1, more=()):
    verb, data, keys = VERBS[name]
    keys = keys + list(more)
    with open(os.path.join(folder, name + ".toml"), "w") as out:
        out.write(RECIPE.format(data=data, steps=steps))
    command = [sinter, "tune", verb, name + ".toml", "-q", "checkpoint.dir=" + run] + keys
    if ranks > 1:
        command = [os.path.join(HERE, "mpirun.sh"), str(ranks)] + command
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process, name):
    out, err = process.communicate(timeout=300)
    if process.returncode != 0:
        sys.exit(f"{name}: failed with {process.returncode}:\n{out.decode()}{err.decode()}")


def files_of(folder, run):
    found = {}
    top = os.path.join(folder, run, "latest")
    for where, _, names in os.walk(os.path.realpath(top)):
        for name in names:
            if name.endswith(".safetensors"):
                with open(os.path.join(where, name), "rb") as f:
                    found[name] = f.read()
    return found


def check_kills(folder, sinter, kills):
    rng = random.Random()
    seed = rng.randrange(1 << 30)
    rng.seed(seed)
    for name in VERBS:
        begin = time.time()
        finish(start(folder, sinter, name, name + "-whole", 9), name)
        seconds = time.time() - begin
        expected, done = files_of(folder, name + "-whole"), 0
        while done < kills:
            run = f"{name}-killed{done}"
            while done < kills:
                process = start(folder, sinter, name, run, 9)
                time.sleep(rng.uniform(0.0, 1.2 * seconds))
                if process.poll() is not None:
                    break
                process.kill()
                process.communicate()
                done += 1
            finish(start(folder, sinter, name, run, 9), name)
            found = files_of(folder, run)
            if found.keys() != expected.keys():
                sys.exit(f"{name}: {sorted(found)} instead of {sorted(expected)} (seed {seed})")
            for part in expected:
                if found[part] != expected[part]:
                    sys.exit(f"{name}: {part} differs from the unbroken run's after kill -9 (seed {seed}, {done} kills)")
        print(f"{name}: {done} kills of runs of {seconds:.1f} s, equal to the unbroken run", flush=True)


def check_ranks(folder, sinter, ranks):
    for name in VERBS:
        if name in NOT_ON_RANKS:
            continue
        for count in (1, ranks):
            finish(start(folder, sinter, name, f"{name}-{count}", 4, count), f"{name} on {count} ranks")
        lines = {}
        for count in (1, ranks):
            with open(os.path.join(folder, f"{name}-{count}", "metrics.jsonl")) as f:
                lines[count] = [json.loads(line) for line in f]
        worst = 0
        for one, many in zip(lines[1], lines[ranks], strict=True):
            if one.get("mine/acc") != many.get("mine/acc"):
                sys.exit(f"{name}: scores {one.get('mine/acc')} on one rank, {many.get('mine/acc')} on {ranks}")
            for key in ("loss", "grad_norm"):
                worst = max(worst, abs(one[key] - many[key]) / max(1.0, abs(one[key])))
        first = abs(lines[1][0]["loss"] - lines[ranks][0]["loss"])
        print(f"{name}: {ranks} ranks, first loss off by {first:.1e}, all losses and norms by {worst:.1e}", flush=True)
        if first > 1e-6 or worst > 2e-5:
            sys.exit(f"{name}: {ranks} ranks differ from one")


    # Whatever is divided among them.
    for name, zero in (("sft", 2), ("sft", 3), ("dpo", 3), ("grpo", 2)):
        finish(start(folder, sinter, name, f"{name}-zero{zero}", 4, ranks, [f"parallel.zero={zero}"]), f"{name} with zero {zero}")
        with open(os.path.join(folder, f"{name}-zero{zero}", "metrics.jsonl")) as f, open(os.path.join(folder, f"{name}-{ranks}", "metrics.jsonl")) as g:
            apart = max(abs(json.loads(a)["loss"] - json.loads(b)["loss"]) for a, b in zip(f, g, strict=True))
        print(f"{name}: zero {zero} off by {apart:.1e}", flush=True)
        if apart > 1e-5:
            sys.exit(f"{name}: zero {zero} differs from zero 0")
    refused = start(folder, sinter, "grpo", "grpo-zero3", 4, ranks, ["parallel.zero=3"])
    out, err = refused.communicate(timeout=300)
    if refused.returncode == 0 or b"parallel.zero 2 or less" not in out + err:
        sys.exit(f"grpo samples with divided weights: {(out + err).decode()}")


def lines_of(folder, run):
    with open(os.path.join(folder, run, "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


# Tensors of an adapter file (f32) by name.
def adapter_of(folder, run):
    data = files_of(folder, run)["adapter_model.safetensors"]
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in entry["data_offsets"])
        tensors[name] = struct.unpack("<%df" % ((end - begin) // 4), data[begin:end])
    return tensors


def ranks_of(layout):
    sizes = dict(item.split("=") for item in layout.split())
    ranks = 1
    for axis in ("tp", "pp", "cp"):
        ranks *= int(sizes.get(axis, 1))
    if "ep" in sizes:  # over data-parallel ranks
        ranks *= int(sizes["ep"])
    return ranks * (2 if "zero" in sizes else 1)


def apart(folder, run, one, is_f32):
    worst = {"loss": 0.0, "norm": 0.0}
    for ours, alone in zip(lines_of(folder, run), lines_of(folder, one), strict=True):
        worst["loss"] = max(worst["loss"], abs(ours["loss"] - alone["loss"]) / max(1.0, abs(alone["loss"])))
        worst["norm"] = max(worst["norm"], abs(ours["grad_norm"] - alone["grad_norm"]) / max(1.0, abs(alone["grad_norm"])))
    ours, alone = adapter_of(folder, run), adapter_of(folder, one)
    if ours.keys() != alone.keys() or any(len(ours[name]) != len(alone[name]) for name in alone):
        sys.exit(f"{run}: other tensors than {one}")
    worst["weights"] = max(abs(a - b) for name in alone for a, b in zip(ours[name], alone[name], strict=True))
    limits = {"loss": 1e-5, "norm": 2e-5, "weights": 2e-5} if is_f32 else {"loss": 2e-3, "norm": 2e-2, "weights": 5e-3}
    return worst, [f"{key} by {worst[key]:.1e}, the limit is {limits[key]:.0e}" for key in limits if not worst[key] <= limits[key]]


def check_layouts(folder, sinter, ranks):
    failed = run = 0
    more = ["optimizer.eps=1e-5", "adapter.dropout=0"]
    for number, (name, keys, layouts) in enumerate(LAYOUTS):
        one = f"{name}-{number}-one"
        finish(start(folder, sinter, name, one, 4, 1, more + keys), f"{name} {keys}")
        for layout in layouts:
            if ranks_of(layout) > ranks:
                continue
            ours = f"{name}-{number}-{layout.replace(' ', '-')}"
            parallel = ["parallel." + item for item in layout.split()]
            finish(start(folder, sinter, name, ours, 4, ranks_of(layout), more + keys + parallel), f"{name} {keys} under {layout}")
            worst, problems = apart(folder, ours, one, "train.precision=bf16" not in keys)
            run += 1
            failed += 1 if problems else 0
            told = "FAIL: " + "; ".join(problems) if problems else ", ".join(f"{key} {value:.1e}" for key, value in worst.items())
            print(f"{name} {' '.join(keys)} under {layout}: {told}", flush=True)
    # Begun under one layout, gone on under others.
    for name, layouts in (("sft", ("tp=2", "pp=2", "cp=2")), ("sft-qlora", ("cp=2", "pp=2", "pp=1"))):
        run += 1
        one = next(f"{name}-{number}-one" for number, entry in enumerate(LAYOUTS) if entry[:2] == (name, []))
        for step, layout in enumerate(layouts, 2):
            finish(start(folder, sinter, name, name + "-moved", step, ranks_of(layout), more + ["parallel." + layout]),
                   f"{name} on to step {step} under {layout}")
        worst, problems = apart(folder, name + "-moved", one, True)
        failed += 1 if problems else 0
        print(f"{name} under {', then '.join(layouts)}:", "; ".join(problems) or worst, flush=True)
    for name, keys, layout, named in REFUSED:
        refused = start(folder, sinter, name, "refused", 4, ranks_of(layout), more + keys + ["parallel." + layout])
        out, err = refused.communicate(timeout=300)
        run += 1
        if refused.returncode == 0 or named.encode() not in out + err:
            failed += 1
            print(f"{name} {keys} under {layout}: ended with {refused.returncode}, does not name '{named}':\n{(out + err).decode()}", flush=True)
    print(f"{run} layouts, {failed} failed", flush=True)
    if failed:
        sys.exit(1)


def main():
    sinter, mode, count = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(folder)
        {"kill": check_kills, "ranks": check_ranks, "layouts": check_layouts}[mode](folder, sinter, count)


if __name__ == "__main__":
    main()
