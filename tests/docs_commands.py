#!/usr/bin/env python3
"""Runs the commands of README and docs as they stand: docs_commands.py PROGRAM SCRATCH FILE...

A command is a line of an indented or fenced block that begins with `sinter`, `make`, `mpirun` and the like. The blocks of one
file run in one folder, in order, so that what one makes the next finds. A reader brings my.txt, MODEL, recipe.toml and the like;
here they come from the shipped stories and golden folders. Lines of usage ([--flag N], FILE...) are not commands: their verb must
exist and its help must have their flags. Lines that cannot run here are named below with the reason; everything else must end
with status 0. The pages made from the program's help, and the list of environment variables, must be those of this program.
"""
import functools
import os
import re
import shutil
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What a line needs that a test does not have; matched anywhere in it. Verb and flags are checked all the same.
NOT_HERE = [
    (r"^make\b", "builds the program: the packaging test does"),
    (r"^(srun|docker|sbatch|apptainer|hf|spack|export) ", "needs a cluster, a container or the net, or stands for itself"),
    (r"sinter serve\b", "waits for its users"),
    (r"http://|--server", "needs a server"),
    (r"device=.?cuda|--device cuda", "needs a GPU"),
    (r"--measure(?! )", "measures the machine for a minute and keeps what it found"),
    (r"my-lora", "needs a tuned adapter"),
    (r"sinter eval (hellaswag|mmlu|compare)", "needs downloaded tasks, or results of two runs"),
    (r"bench ", "measures"),
]
USAGE = re.compile(r"\[(?!<)|\.\.\.| \| |^sinter plan (MODEL|search|simulate|cost|inference)$|^sinter tune \w+$")
TASKS = {  # what a line stands for where a document leaves the file to its reader
    "train-on-web.toml": "train.steps=2 train.batch_tokens=0 data.cache=cache",
}
SMALL = "train.tokens=4096 train.batch_tokens=2048 log.sample_every=0"


def blocks_of(path):
    """Lines of the indented and fenced blocks, in order, without the remarks beside them."""
    fenced = False
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("```"):
                fenced = not fenced
                continue
            if not fenced and not line.startswith("    "):
                continue
            text = re.split(r"\s{2,}|\s+# ", line.strip())[0].strip()
            if re.match(r"(sinter|make|export|mpirun|srun|docker|hf) ", text):
                yield number, text


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def prepare(folder, program):
    """What the documents take for granted: the repository's recipes and data, a model, and the reader's own text."""
    os.makedirs(folder)
    for name in ("recipes", "tasks"):
        os.symlink(os.path.join(REPOSITORY, name), os.path.join(folder, name))
    shutil.copytree(os.path.join(REPOSITORY, "data"), os.path.join(folder, "data"))
    model = os.path.join(REPOSITORY, "tests/golden/eval/models/tiny-gpt2")
    for name in ("MODEL", "REF", "qwen3-0.6b", "models/stories15M"):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        os.symlink(model, os.path.join(folder, name))
    os.symlink(os.path.join(REPOSITORY, "tests/golden/gguf/models/llama/llama.q4_k_m.gguf"),
               os.path.join(folder, "model.q4_k_m.gguf"))
    # GPT-2's transposed weights have no quantized folder: my-model is a Llama.
    subprocess.run([program, "convert", "model.q4_k_m.gguf", "my-model", "--type", "f16"], cwd=folder, check=True, capture_output=True)
    shutil.copytree(model, os.path.join(folder, "data/tokenizer"), ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    with open(os.path.join(REPOSITORY, "data/stories/valid.txt"), encoding="utf-8") as file:
        text = file.read()
    for name in ("my.txt", "train.txt"):
        write(os.path.join(folder, name), text)
    for name in ("valid.txt", "text.txt", "FILE", "beginning.txt"):
        write(os.path.join(folder, name), text[:3000])
    stories = [s.strip() for s in text.split("<|endoftext|>") if s.strip()]
    import json
    write(os.path.join(folder, "prompts.jsonl"), "".join(json.dumps({"prompt": s[:40], "max_tokens": 4}) + "\n" for s in stories[:3]))
    write(os.path.join(folder, "wiki.jsonl"), "".join(json.dumps({"text": s[:80]}) + "\n" for s in stories[:2]))
    write(os.path.join(folder, "docs.jsonl"), "".join(json.dumps({"text": s, "id": f"story-{i}"}) + "\n" for i, s in enumerate(stories)))
    write(os.path.join(folder, "data/raw/stories.jsonl"), "".join(json.dumps({"text": s}) + "\n" for s in stories * 3))
    chat = [{"messages": [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": s[:200]}]} for s in stories]
    write(os.path.join(folder, "chats.jsonl"), "".join(json.dumps(c) + "\n" for c in chat))
    write(os.path.join(folder, "gsm8k.jsonl"), json.dumps({"question": "What is 1 + 1?", "answer": "It is 2.\n#### 2"}) + "\n")
    write(os.path.join(folder, "pairs.json"), json.dumps([{"prompt": "Hi", "chosen": "Hello.", "rejected": "No."}]))
    losses = "".join(f"{n},{d},{1.7 + 400 * n ** -0.34 + 410 * d ** -0.28}\n" for n in (1e6, 3e6, 1e7, 3e7) for d in (1e8, 3e8, 1e9, 3e9))
    write(os.path.join(folder, "sweep.csv"), "params,tokens,loss\n" + losses)
    recipe = ('[model]\nfamily = "llama"\nlayers = 2\nhidden = 64\nheads = 4\nkv_heads = 2\nffn = 96\n[data]\nsources = ["my.txt"]\n'
              'tokenizer = "MODEL"\nsequence_length = 64\n[train]\nmicro_batch = 2\n')
    for name in ("recipe.toml", "r.toml"):
        write(os.path.join(folder, name), recipe)
    os.makedirs(os.path.join(folder, "build"))


class Checker:
    def __init__(self, program, scratch):
        self.program = os.path.abspath(program)
        self.scratch = os.path.abspath(scratch)
        home = os.path.join(self.scratch, "home")
        os.makedirs(home)
        self.environment = dict(os.environ, HOME=home, XDG_CONFIG_HOME=home + "/.config",
                                PATH=os.path.dirname(self.program) + ":" + os.environ["PATH"],
                                OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                OMPI_MCA_rmaps_base_oversubscribe="1")
        self.failed = self.ran = self.usages = 0

    @functools.lru_cache(maxsize=None)
    def help_of(self, words):
        result = subprocess.run([self.program, *words, "--help"], capture_output=True, text=True, env=self.environment)
        return result.stdout if result.returncode == 0 else ""

    def fail(self, place, text):
        self.failed += 1
        print(f"{place}: {text}")

    def check_usage(self, place, command):
        """The verb that a line names, and each of its flags, must be in the help."""
        self.usages += 1
        words = command[command.index("sinter ") + 7:].split()
        path = []
        for word in words:  # as deep as the help goes
            if not re.fullmatch(r"[a-z]+", word) or f"Usage: sinter {' '.join(path + [word])}" not in self.help_of((*path, word)):
                break
            path.append(word)
        if not path and not words[0].startswith("-"):
            return self.fail(place, f"there is no such verb: {command}")
        text = self.help_of(tuple(path))
        for flag in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", command[command.index("sinter "):]):
            if not re.search(r"(?<![\w-])" + re.escape(flag) + r"(?![\w-])", text):
                self.fail(place, f"`sinter {' '.join(path)} --help` does not have {flag}: {command}")

    def run(self, place, command, folder):
        short = command
        if re.search(r"sinter train \S+\.toml", command) and "--dry-run" not in command:
            small = next((v for k, v in TASKS.items() if k in command), SMALL)
            given = set(re.findall(r"\b(\w+\.\w+)=", command))
            short += "".join(" " + s for s in small.split() if s.split("=")[0] not in given)
        short = re.sub(r"(verify layouts.*--count) \d+", r"\1 1", short)
        short = re.sub(r"--group \d+", "--group 16", short)  # of the small model's columns
        short = re.sub(r"(sinter generate (?!.*--input)(?!.*--max-tokens).*)", r"\1 --max-tokens 8", short)
        result = subprocess.run(["bash", "-euo", "pipefail", "-c", short], cwd=folder, env=self.environment, text=True, errors="replace",
                                capture_output=True, timeout=900, stdin=subprocess.DEVNULL)
        self.ran += 1
        if result.returncode != 0:
            self.fail(place, f"status {result.returncode}: {short}\n{result.stdout[-1500:]}{result.stderr[-1500:]}")

    def check_environment(self, path):
        """Every variable of our own that the sources read is in the page, and the page names no other."""
        with open(path, encoding="utf-8") as file:
            told = set(re.findall(r"\bSINTER_[A-Z0-9_]+", file.read()))
        read = set()
        for folder, _, names in os.walk(os.path.join(REPOSITORY, "src")):
            for name in names:
                if not name.endswith((".cc", ".cu", ".h", ".cuh")) or name.endswith("_test.cc"):
                    continue
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                    read |= set(re.findall(r'"(SINTER_[A-Z0-9_]+)"', file.read()))
        for variable in sorted(told ^ read):
            self.fail("environment.md", variable + (" is read by nothing" if variable in told else " is not told"))

    def check_generated(self, folder):
        """docs/cli and docs/recipe.md are what this program says of itself (`make docs` writes them)."""
        made = os.path.join(folder, "pages")
        subprocess.run([self.program, "man", "--pages", made], check=True, capture_output=True)
        keys = subprocess.run([self.program, "train", "--keys"], check=True, capture_output=True, text=True).stdout
        pages = {os.path.join("cli", name): open(os.path.join(made, name), encoding="utf-8").read() for name in os.listdir(made)}
        pages["recipe.md"] = keys
        for name, text in sorted(pages.items()):
            path = os.path.join(REPOSITORY, "docs", name)
            if not os.path.exists(path) or text not in open(path, encoding="utf-8").read():
                self.fail("docs/" + name, "is not what this program says: make docs")

    def check_file(self, path):
        name = os.path.basename(path).removesuffix(".md")
        folder = os.path.join(self.scratch, name)
        prepare(folder, self.program)
        if name == "README":
            self.check_generated(folder)
        if name == "environment":
            self.check_environment(path)
        for number, command in blocks_of(path):
            place = f"{name}.md:{number}"
            if USAGE.search(command):
                self.check_usage(place, command)
                continue
            reason = next((why for pattern, why in NOT_HERE if re.search(pattern, command)), None)
            if reason or (command.startswith("mpirun") and not shutil.which("mpirun")):
                print(f"{place}: left out ({reason or 'no mpirun here'}): {command}")
                if "sinter " in command:
                    self.check_usage(place, command)
                continue
            self.run(place, command, folder)


def main():
    program, scratch, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    shutil.rmtree(scratch, ignore_errors=True)
    checker = Checker(program, scratch)
    for path in files:
        checker.check_file(path)
    print(f"{checker.ran} commands of {len(files)} documents ran, {checker.usages} lines of usage were compared with the help, "
          f"{checker.failed} failed")
    sys.exit(1 if checker.failed or checker.ran == 0 else 0)


if __name__ == "__main__":
    main()
