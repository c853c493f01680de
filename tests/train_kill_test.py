#!/usr/bin/env python3
"""kill -9 at random moments of a small run, each resumed: the final weights and state equal the unbroken run's bit for bit.

Usage: train_kill_test.py SINTER KILLS [--signal] [--ranks N]
With --signal one run gets SIGTERM instead and must stop cleanly with a checkpoint. With --ranks the runs are of N ranks, and
a kill hits all of them at once or one of them, after which mpirun ends the others."""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

RECIPE = """
[model]
family = "llama"
hidden = 32
layers = 2
heads = 4
ffn = 64
[data]
sources = "text.txt"
tokenizer = "tok"
sequence_length = 32
[train]
steps = {steps}
micro_batch = 2
batch_tokens = {batch_tokens}
threads = 1
[checkpoint]
dir = "{dir}"
every = 2
export_every = 4
"""
MPIRUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpirun.sh")
RANKS = int(sys.argv[sys.argv.index("--ranks") + 1]) if "--ranks" in sys.argv else 1


def write_inputs(folder, sinter):
    rng = random.Random(7)
    words = "the cat dog sat ran on a mat hill big red and then it was happy".split()
    documents = [" ".join(rng.choice(words) for _ in range(rng.randint(5, 60))) for _ in range(400)]
    with open(os.path.join(folder, "text.txt"), "w") as out:
        out.write("<|endoftext|>".join(documents))
    subprocess.run([sinter, "tokenizer", "train", "text.txt", "--out", "tok", "--vocab-size", "300"], cwd=folder,
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def start(folder, sinter, name, steps):
    recipe = os.path.join(folder, name + ".toml")
    with open(recipe, "w") as out:
        out.write(RECIPE.format(dir=name, steps=steps, batch_tokens=128 if RANKS == 1 else 64 * RANKS))
    command = [sinter, "train", "-q", recipe]
    if RANKS > 1:
        command = [MPIRUN, str(RANKS)] + command
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def children_of(pid):
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
            return [int(child) for child in f.read().split()]
    except OSError:
        return []


def kill_all(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def kill(process, rng):
    """kill -9 of the run: the program, or with ranks all of them and mpirun, or one of them."""
    ranks = children_of(process.pid) if RANKS > 1 else []
    kill_all([rng.choice(ranks)] if ranks and rng.random() < 0.5 else ranks + [process.pid])
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        # mpirun of Open MPI 4.1 now and then waits for a lock of its own when its ranks are gone. Ranks that are not are
        # ours to answer for.
        alive = [pid for pid in ranks if process_state(pid) != "Z"]
        kill_all(ranks + [process.pid])
        if alive:
            sys.exit("a minute after one rank was killed %d others still ran" % len(alive))
        process.communicate()
    for pid in ranks:  # orphans are gone when the system has cleared them away
        while os.path.exists("/proc/%d" % pid) and process_state(pid) != "Z":
            time.sleep(0.01)


def process_state(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def finish(process):
    out, err = process.communicate(timeout=300)
    if process.returncode != 0:
        sys.exit("sinter train failed with %d:\n%s" % (process.returncode, err.decode()))
    return out.decode()


def result_of(folder, name):
    files = {}
    states = ["state/rank-%05d.safetensors" % rank for rank in range(RANKS)]
    for part in ["model.safetensors", "config.json"] + states:
        with open(os.path.join(folder, name, "latest", part), "rb") as f:
            files[part] = f.read()
    return files


def check_kills(folder, sinter, kills, steps):
    begin = time.time()
    finish(start(folder, sinter, "whole", steps))
    seconds = time.time() - begin
    expected = result_of(folder, "whole")
    rng = random.Random()
    seed = rng.randrange(1 << 30)
    rng.seed(seed)
    done = 0
    round_number = 0
    while done < kills:
        # Each round is one run from the start, killed a few times, then finished and compared.
        name = "killed%d" % round_number
        round_number += 1
        while done < kills:
            process = start(folder, sinter, name, steps)
            time.sleep(rng.uniform(0.0, 1.2 * seconds))
            if process.poll() is not None:
                finish(process)
                break
            kill(process, rng)
            done += 1
        finish(start(folder, sinter, name, steps))
        found = result_of(folder, name)
        for part in expected:
            if found[part] != expected[part]:
                sys.exit("%s differs from the unbroken run after kill -9 (seed %d, %d kills done)" % (part, seed, done))
    print("%d kills over %d runs of %.1f s: all equal to the unbroken run" % (done, round_number, seconds))


def check_signal(folder, sinter):
    process = start(folder, sinter, "signalled", 100000)
    metrics = os.path.join(folder, "signalled", "metrics.jsonl")
    while not (os.path.exists(metrics) and os.path.getsize(metrics) > 0):
        if process.poll() is not None:
            finish(process)
            sys.exit("the run ended before its first step")
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out = finish(process)
    if "stopped early: SIGTERM" not in out or not os.path.exists(os.path.join(folder, "signalled", "latest", "config.json")):
        sys.exit("after SIGTERM: " + out)
    print("SIGTERM: checkpoint written, exit 0")


def main():
    sinter, kills = os.path.abspath(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(folder, sinter)
        if "--signal" in sys.argv:
            check_signal(folder, sinter)
        check_kills(folder, sinter, kills, 30)


main()
