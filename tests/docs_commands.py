#!/usr/bin/env python3
"""Runs the commands of README and docs as they stand: docs_commands.py PROGRAM SCRATCH FILE...

A command is a line of an indented block that begins with `sinter` or `make`. The blocks of one file run in one folder, in
order, under the same shell, so that what one makes the next finds. A reader brings my.txt, my-data and the like; here they come from the
shipped stories. Lines that cannot run here are named below with the reason; everything else must end with status 0.
"""
import os
import re
import shutil
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What a line needs that a test does not have; matched anywhere in it.
NOT_HERE = [
    (r"^make (quickstart|test|install|cuda|asan|bench)", "builds the program: the packaging test does"),
    (r"^\s*(mpirun|srun|docker|sbatch|apptainer|hf|spack) ", "needs a cluster, a container or the net"),
    (r"sinter (chat|serve)\b", "waits for its user"),
    (r"device=.?cuda|--device cuda", "needs a GPU"),
]


def blocks_of(path):
    """Lines of the indented blocks, in order, without comments at their end."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.startswith("    "):
                continue
            text = re.split(r"\s{2,}#|\s+# ", line.strip())[0].strip()
            if re.match(r"(sinter|make|export|cd|mkdir|mpirun|srun|docker|hf) ", text):
                yield number, text


def prepare(folder):
    """What the documents take for granted: the repository's recipes and data, and the reader's own text."""
    os.makedirs(folder)
    for name in ("recipes", "data", "tasks"):
        os.symlink(os.path.join(REPOSITORY, name), os.path.join(folder, name))
    with open(os.path.join(REPOSITORY, "data/stories/valid.txt"), encoding="utf-8") as file:
        text = file.read()
    with open(os.path.join(folder, "my.txt"), "w", encoding="utf-8") as file:
        file.write(text)
    os.makedirs(os.path.join(folder, "build"))


def main():
    program, scratch, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    shutil.rmtree(scratch, ignore_errors=True)
    environment = dict(os.environ, PATH=os.path.dirname(os.path.abspath(program)) + ":" + os.environ["PATH"])
    failed = ran = 0
    for path in files:
        folder = os.path.join(scratch, os.path.basename(path).removesuffix(".md"))
        prepare(folder)
        for number, command in blocks_of(path):
            reason = next((why for pattern, why in NOT_HERE if re.search(pattern, command)), None)
            if reason:
                print(f"{os.path.basename(path)}:{number}: left out ({reason}): {command}")
                continue
            # Small enough for a test: the commands are the document's, the work is less.
            short = command
            if re.match(r"sinter train \S+\.toml", command) and "--dry-run" not in command:
                short += " train.tokens=4096 train.batch_tokens=2048 log.sample_every=0"
            result = subprocess.run(["bash", "-euo", "pipefail", "-c", short], cwd=folder, env=environment, text=True,
                                    capture_output=True, timeout=900, stdin=subprocess.DEVNULL)
            ran += 1
            if result.returncode != 0:
                failed += 1
                print(f"{os.path.basename(path)}:{number}: status {result.returncode}: {short}\n"
                      f"{result.stdout[-1500:]}{result.stderr[-1500:]}")
    print(f"{ran} commands of {len(files)} documents ran, {failed} failed")
    sys.exit(1 if failed or ran == 0 else 0)


if __name__ == "__main__":
    main()
