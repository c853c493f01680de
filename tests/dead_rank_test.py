#!/usr/bin/env python3
"""kill -9 of one rank of a run: all of it ends within 30 s, says which rank is gone, and goes on with fewer ranks.

Usage: dead_rank_test.py SINTER [--zero N]
The run of fewer ranks must give the losses of a run that nobody killed."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

RECIPE = """
[model]
family = "llama"
hidden = 32
layers = 3
heads = 4
ffn = 64
vocab_size = 300
[data]
sources = "text.txt"
tokenizer = "tok"
sequence_length = 32
[train]
steps = {steps}
micro_batch = 2
batch_tokens = 768
threads = 1
[optimizer]
eps = 1e-5
[schedule]
kind = "constant"
[parallel]
zero = {zero}
timeout = 20
[checkpoint]
dir = "{dir}"
every = 5
"""
MPIRUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpirun.sh")
LIMIT_SECONDS = 30
ZERO = int(sys.argv[sys.argv.index("--zero") + 1]) if "--zero" in sys.argv else 0


def write_inputs(folder, sinter):
    lines = ["the cat sat on the mat number %d and then it was %s" % (i, "happy sad red big".split()[i % 4])
             for i in range(600)]
    with open(os.path.join(folder, "text.txt"), "w") as out:
        out.write("<|endoftext|>".join(lines))
    subprocess.run([sinter, "tokenizer", "train", "text.txt", "--out", "tok", "--vocab-size", "300"], cwd=folder,
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def start(folder, sinter, name, steps, ranks):
    recipe = os.path.join(folder, name + ".toml")
    with open(recipe, "w") as out:
        out.write(RECIPE.format(dir=name, steps=steps, zero=ZERO))
    return subprocess.Popen([MPIRUN, str(ranks), sinter, "train", "-q", recipe], cwd=folder, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def finish(process, what):
    out, _ = process.communicate(timeout=300)
    if process.returncode != 0:
        sys.exit("%s failed with %d:\n%s" % (what, process.returncode, out))


def losses_of(folder, name):
    with open(os.path.join(folder, name, "metrics.jsonl")) as f:
        return {entry["step"]: entry["loss"] for entry in map(json.loads, f)}


def ranks_of(process):
    with open("/proc/%d/task/%d/children" % (process.pid, process.pid)) as f:
        return [int(child) for child in f.read().split()]


def is_running(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill_one(folder, sinter):
    process = start(folder, sinter, "killed", 100000, 4)
    latest = os.path.join(folder, "killed", "latest", "state", "index.json")
    while not os.path.exists(latest):
        if process.poll() is not None:
            finish(process, "the run to be killed")
            sys.exit("the run ended before it was killed")
        time.sleep(0.05)
    ranks = ranks_of(process)
    os.kill(ranks[2], signal.SIGKILL)
    begin = time.time()
    while any(is_running(pid) for pid in ranks):
        if time.time() - begin > LIMIT_SECONDS:
            for pid in ranks + [process.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            sys.exit("%d s after a rank was killed others still ran" % LIMIT_SECONDS)
        time.sleep(0.05)
    seconds = time.time() - begin
    try:
        out, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:  # mpirun of Open MPI 4.1 now and then waits for a lock of its own
        process.kill()
        out, _ = process.communicate()
    if "rank 2" not in out and str(ranks[2]) not in out:
        sys.exit("no message names the rank that is gone:\n" + out)
    return seconds


def main():
    sinter = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(folder, sinter)
        seconds = kill_one(folder, sinter)
        reached = max(losses_of(folder, "killed"))
        steps = reached + 10
        finish(start(folder, sinter, "killed", steps, 2), "the run of fewer ranks")
        finish(start(folder, sinter, "whole", steps, 4), "the run that nobody killed")
        found, expected = losses_of(folder, "killed"), losses_of(folder, "whole")
        if sorted(found) != list(range(1, steps + 1)):
            sys.exit("steps are missing or told twice: %s" % sorted(found))
        worst = max(abs(found[step] / expected[step] - 1) for step in expected)
        if worst > 1e-4:
            sys.exit("losses are off by %.1e from those of the run that nobody killed" % worst)
    print("zero %d: ended %.1f s after one of 4 ranks was killed, went on with 2, losses within %.0e" %
          (ZERO, seconds, worst))


main()
