#!/usr/bin/env python3
"""kill -9 at random moments of a data run: it must go on and end with the bytes of an unbroken one.

usage: data_kill_test.py SINTER KILLS [--seed N] [--ranks N]
"""
import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time

WORDS = "the house with river and people that walked have seen of morning light to be garden".split()


def make_input(path, count, rng):
    texts = []
    with open(path, "w") as f:
        for i in range(count):
            if i % 7 == 6:
                text = rng.choice(texts)
            else:
                text = " ".join(" ".join(rng.choice(WORDS) + rng.choice("abcdefgh") for _ in range(12)) + " the and." for _ in range(9))
                texts.append(text)
            f.write('{"id": "%d", "text": "%s"}\n' % (i, text))
            if i % 50 == 0:
                f.write("not JSON\n")


def make_small_files(folder, count, rng):
    """Pages and texts that share work units."""
    os.makedirs(folder)
    for i in range(count):
        text = " ".join(rng.choice(WORDS) + rng.choice("abcdefgh") for _ in range(120)) + " the and."
        if i % 3 == 0:
            with open(f"{folder}/{i:03}.txt", "w") as f:
                f.write(f"{text}<|endoftext|>{text[::-1]}")
        else:
            with open(f"{folder}/{i:03}.html", "w") as f:
                f.write(f"<html><title>{i}</title><body><article><p>{text}</p><p>{text[50:]}</p></article></body></html>")


def digests(folder):
    found = {}
    for sub in ("documents", "columns", "aside", "tokens", "."):
        for name in sorted(os.listdir(os.path.join(folder, sub))):
            path = os.path.join(folder, sub, name)
            if os.path.isfile(path):
                found[sub + "/" + name] = hashlib.sha256(open(path, "rb").read()).hexdigest()
    return found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("sinter")
    p.add_argument("kills", type=int)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--documents", type=int, default=6000)
    p.add_argument("--ranks", type=int, default=1)
    a = p.parse_args()
    rng = random.Random(a.seed)
    scratch = tempfile.mkdtemp(prefix="sinter_kill_")
    try:
        make_input(scratch + "/in.jsonl", a.documents, rng)
        make_small_files(scratch + "/small", 40, rng)
        tokenizer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden/eval/models/tiny-gpt2")
        with open(scratch + "/p.toml", "w") as f:
            f.write('[run]\npart_bytes = 200000\n[[input]]\npath = "%s/in.jsonl"\nweight = 2\n[[input]]\npath = "%s/small"\n' % (scratch, scratch))
            f.write('[mix]\nby = "weights"\nmost_epochs = 3\n[filter]\nfineweb = false\n[tokenize]\ntokenizer = "%s"\n' % tokenizer)
        base = [a.sinter, "data", "run", scratch + "/p.toml"]
        if a.ranks > 1:
            base = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(a.ranks)] + base
        start = time.time()
        subprocess.run([a.sinter, "data", "run", scratch + "/p.toml", "run.output=" + scratch + "/whole"], check=True, stdout=subprocess.DEVNULL)
        whole_time = time.time() - start
        whole = digests(scratch + "/whole")
        if a.ranks > 1:  # how long ranks take, whose start takes longer than one process; also what they write unbroken
            start = time.time()
            subprocess.run(base + ["run.output=" + scratch + "/ranked"], check=True, stdout=subprocess.DEVNULL)
            whole_time = time.time() - start
            assert digests(scratch + "/ranked") == whole, f"{a.ranks} ranks write other bytes than one process"
        command = base + ["run.output=" + scratch + "/broken"]
        kills = early = 0
        while kills < a.kills:
            run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            time.sleep(rng.uniform(0.02, whole_time * 0.9))
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                kills += 1
            else:  # it came to its end: begin anew
                early += 1
                shutil.rmtree(scratch + "/broken", ignore_errors=True)
            run.wait()
            if kills % 5 == 0:  # and now and then a worker's results are lost
                folder = scratch + "/broken/work"
                names = os.listdir(folder) if os.path.isdir(folder) else []
                if names:
                    os.remove(os.path.join(folder, rng.choice(names)))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        broken = digests(scratch + "/broken")
        assert broken == whole, sorted(k for k in whole.keys() | broken.keys() if whole.get(k) != broken.get(k))[:5]
        print(f"{kills} kills ({early} runs ended before theirs), {len(whole)} files, the same bytes")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
