#!/usr/bin/env python3
"""Help, tables and random command lines of every verb: command_line_test.py PROGRAM SCRATCH [SEED COUNT].

Help has at most 100 columns and an example on every verb, tables at most 120. A misspelt option is answered with the nearest
one. COUNT random lines drawn from SEED (each printed where it fails) end with status 0, 1 or 2, an error is told once, and
nothing of a library's own is in it.
"""
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HELP_WIDTH, TABLE_WIDTH = 100, 120
WITHOUT_EXAMPLE = {"", "help"}
# Waits for clients, measures for minutes, or is meant to run until it is stopped.
NOT_DRAWN = re.compile(r"^(serve|bench|chat)\b")
MAY_RUN_ON = re.compile(r"^(train|tune|verify|eval|data|plan|generate|tokenizer|quantize|batch)\b")
RAW = re.compile(r"terminate called|what\(\)|std::|json\.exception|CLI::|basic_string|toml::|assert|Sanitizer|vector::|"
                 r"syntax error while|required TEXT|end of input")
TABLES = [
    "plan {model} --gpus {gpus} --explain", "plan search {model} --gpus {gpus}", "plan inference {model} --gpus {gpus}",
    "plan simulate {model} --gpus {gpus}", "plan cost {model} --gpus {gpus}", "plan batch {model}", "plan devices", "plan models",
    "plan scaling {model}", "inspect MODEL", "inspect model.gguf", "tokenizer inspect MODEL --text {gpus}",
    "train recipe.toml --dry-run", "train recipe.toml --dry-run --on {gpus}", "train --keys", "--version", "eval --list",
    "train recipe.toml log.sample_every=0", "train recipe.toml checkpoint.dir=run-" + "of-a-long-name-" * 3, "plot run run-" + "of-a-long-name-" * 3,
    "inspect run", "plan fit fit.csv", "plan scaling --flops 1e20", "data tokenize text.txt -t MODEL -o out/a.tok", "data inspect out",
    "data preview lines.jsonl text.txt", "data stats lines.jsonl", "verify {repo}/tests/golden/models/qwen3_moe", "verify {repo}/tests/golden/tune/reward",
    "eval perplexity MODEL text.txt --precision bf16", "eval kl MODEL MODEL text.txt", "eval mine.toml MODEL --limit 4",
    "quantize MODEL out/q.gguf --type q8_0", "inspect out/q.gguf", "bench --kernels", "tokenizer train text.txt --vocab-size 300 --out out/tok",
    "inspect out/tok", "inspect out/a.tok",
]


def prepare(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder + "/home")
    os.chdir(folder)
    shutil.copytree(REPOSITORY + "/tests/golden/eval/models/tiny-gpt2", "MODEL")
    shutil.copy(REPOSITORY + "/tests/golden/gguf/models/llama/llama.q4_k_m.gguf", "model.gguf")
    with open(REPOSITORY + "/data/stories/valid.txt", encoding="utf-8") as file:
        text = file.read()[:20000]
    files = {
        "text.txt": text, "empty.txt": "", "lines.jsonl": '{"text": "a line"}\n' * 40, "bad.jsonl": '{"text": 1\nx\n', "bad.toml": "[model\n",
        "odd.toml": "[model]\nfamily = 7\n[no]\nx = 1\n",
        "recipe.toml": '[model]\nfamily = "llama"\nlayers = 1\nhidden = 16\nheads = 2\n[data]\nsources = "text.txt"\ntokenizer = "MODEL"\n'
                       'sequence_length = 32\n[train]\nsteps = 2\nmicro_batch = 2\n',
        "sweep.csv": "params,tokens,loss\n1e6,1e8,4\n3e6,1e8,3.8\n", "fit.csv": "params,tokens,loss\n" + "".join(f"{n},{d},{1.8 + 400 / n ** 0.34 + 410 / d ** 0.28}\n" for n in (1e6, 1e7, 1e8) for d in (1e8, 1e9, 1e10)),
        "mine.toml": 'task = "a_task_of_mine_with_a_name_that_is_longer_than_usual"\nkind = "multiple_choice"\ncontext = "{{text}}"\n'
                     'choices = ["yes", "no"]\ntarget = "0"\nmetrics = ["acc", "acc_norm"]\n[data]\ntest = "lines.jsonl"\n',
        "chat.jsonl": json.dumps({"messages": [{"role": "user", "content": "Hi"}]}) + "\n",
    }
    for name, content in files.items():
        with open(name, "w", encoding="utf-8") as file:
            file.write(content)
    with open("bytes.bin", "wb") as file:
        file.write(bytes(range(256)) * 20)


class Program:
    def __init__(self, path):
        self.path = path
        self.environment = dict(os.environ, HOME=os.getcwd() + "/home", COLUMNS=str(TABLE_WIDTH), SINTER_THREADS="1")
        self.environment.pop("XDG_CONFIG_HOME", None)
        self.failures = 0

    def run(self, words, seconds=60):
        """(status or None where it was still running, stdout, stderr)"""
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        process = subprocess.Popen([self.path, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=self.environment, preexec_fn=limit, start_new_session=True)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return None, "", ""
        return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")

    def fail(self, why, words, text=""):
        self.failures += 1
        print(f"FAIL {why}: sinter {' '.join(map(repr, words))}\n{text[-1500:]}")


def commands_of(program, path=()):
    """Every verb with the options and the verbs below that its help lists."""
    status, text, _ = program.run([*path, "--help"])
    if status != 0:
        program.fail("no help", path)
        return
    options, verbs, section = {}, [], ""
    for line in text.splitlines():
        if re.match(r"\S.*:$", line):
            section = line
        elif section == "Options:" and (match := re.match(r"  (-[-\w,]+)( [A-Z]+)?", line)):
            options[match[1].split(",")[-1]] = bool(match[2])
        elif section == "Verbs:" and (match := re.match(r"  ([a-z][-\w]*)(\s|$)", line)):
            verbs.append(match[1])
    yield path, text, options
    for verb in verbs:
        yield from commands_of(program, (*path, verb))


def check_help(program, commands):
    for path, text, options in commands:
        for line in text.splitlines():
            if len(line) > HELP_WIDTH:
                program.fail(f"help of {len(line)} columns", path, line)
        has_below = any(other[:-1] == path for other, _, _ in commands)
        if not has_below and " ".join(path) not in WITHOUT_EXAMPLE and "Example" not in text:
            program.fail("no example in the help of", path)
        for option in options:
            if len(option) < 7:
                continue
            wrong = option[:-2] + option[-1]
            if wrong in options:
                continue
            status, _, err = program.run([*path, wrong])
            if status != 2 or "did you mean" not in err:
                program.fail(f"status {status} and no nearest name for {wrong}", path, err)


def check_tables(program, draw):
    for line in TABLES:
        model = draw.choice(["gpt2", "llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "llama-3.1-405b", "deepseek-v3"])
        gpus = draw.choice(["8xH100", "16x8xA100-40GB", "512xH200", "4xMI300X", "64xTPU-v5p", "1xRTX-4090"])
        words = line.format(model=model, gpus=gpus, repo=REPOSITORY).split()
        status, out, err = program.run(words, 120)
        makes_no_choice = "{model}" not in line and "{gpus}" not in line
        if status not in (0, 1, 2) or status != 0 and makes_no_choice:
            program.fail(f"status {status}", words, err)
        for text in (out + err).splitlines():
            if len(text) > TABLE_WIDTH and not text.startswith("sinter: ") and not re.match(r"\d\d:\d\d:\d\d ", text):
                program.fail(f"{len(text)} columns", words, text)


def random_value(draw):
    return draw.choice([
        "", "-1", "0", "1", "2", "7", "1e309", "nan", "inf", "-0.5", "0.5", "9" * 30, "x", "x" * 300, "é\u0301\U0001f600", "a\tb", "{", "[1,", "%s%n",
        "text.txt", "empty.txt", "lines.jsonl", "bad.jsonl", "bad.toml", "odd.toml", "recipe.toml", "bytes.bin", "sweep.csv", "chat.jsonl", "MODEL",
        "model.gguf", "nowhere", "nowhere/below", ".", "/dev/null", "/proc/self/mem", "gpt2", "8xH100", "fp32", "bf16", "q8_0", "cpu", "cuda",
        "train.steps=1", "model.layers=-3", "=", "a=b", "-", "--", "out/new", "MODEL/config.json", "*.txt", "http://", "1,2,3"])


# Lines that work, in which a word or two are changed, left out or added.
SOUND = [
    "plan gpt2 --gpus 8xH100 --explain", "plan search gpt2 --gpus 4xA100 --top 3", "plan inference gpt2 --gpus 1xH100", "plan cost gpt2 --tokens 1B",
    "plan batch gpt2", "plan scaling --flops 1e20", "plan fit sweep.csv", "plan simulate gpt2 --gpus 8xH100 --pp 2", "plan check sweep.csv",
    "tokenizer train text.txt --vocab-size 300 --out out/tok --force", "tokenizer encode MODEL text.txt", "tokenizer decode MODEL text.txt",
    "tokenizer inspect MODEL --text Hi", "data tokenize text.txt -t MODEL -o out/x.tok", "data inspect out", "data preview lines.jsonl",
    "train recipe.toml train.steps=1 checkpoint.dir=out/run", "train recipe.toml --dry-run --on 8xH100", "train --keys data", "train --template gpu",
    "plot out/run", "generate MODEL --prompt Hi --max-tokens 2", "generate MODEL --input lines.jsonl", "inspect MODEL", "inspect model.gguf",
    "eval perplexity MODEL text.txt --precision bf16", "verify MODEL", "quantize MODEL out/q.gguf --type q8_0", "convert model.gguf out/folder",
    "merge MODEL out/merged", "batch lines.jsonl out/answers.jsonl", "man", "completion bash", "help plan search",
]


def changed_line(draw):
    words = draw.choice(SOUND).split()
    for _ in range(draw.randrange(1, 3)):
        place, what = draw.randrange(len(words)), draw.random()
        if what < 0.5:
            words[place] = random_value(draw)
        elif what < 0.65 and len(words) > 1:
            del words[place]
        elif what < 0.8:
            words.insert(place + 1, random_value(draw))
        else:
            word = words[place]
            at = draw.randrange(len(word) + 1)
            words[place] = word[:at] + draw.choice("x-=.,0\u00e9") + word[at + draw.randrange(2):]
    return words


def random_line(draw, commands):
    path, _, options = draw.choice(commands)
    words = list(path)
    for _ in range(draw.randrange(4)):
        words.append(random_value(draw))
    for _ in range(draw.randrange(4)):
        if not options:
            break
        option = draw.choice(list(options))
        if option in ("--help", "--version", "--measure"):
            continue
        if draw.random() < 0.1:
            option = option[:-1]
        words.append(option)
        if options.get(option, draw.random() < 0.5) and draw.random() < 0.9:
            words.append(random_value(draw))
    return words


def check_random_lines(program, draw, commands, count):
    commands = [c for c in commands if c[0] and not NOT_DRAWN.match(c[0][0])]
    statuses = {}
    for _ in range(count):
        words = random_line(draw, commands) if draw.random() < 0.3 else changed_line(draw)
        status, out, err = program.run(words, 20)
        statuses[status] = statuses.get(status, 0) + 1
        if status is None:
            if not MAY_RUN_ON.match(words[0]):
                program.fail("no end within 20 seconds", words)
            continue
        told = [line for line in err.splitlines() if line.startswith("sinter: ")]
        if status not in (0, 1, 2):
            program.fail(f"status {status}", words, err)
        elif status == 2 and len(told) != 1 or status == 1 and len(told) > 1 or status == 1 and not (out + err).strip():
            program.fail(f"status {status}, {len(told)} errors told", words, err)
        elif RAW.search(err) or "\0" in err:
            program.fail("a library's own words", words, err)
    return statuses


def main():
    program_path, scratch = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    seed, count = (int(n) for n in sys.argv[3:5]) if len(sys.argv) > 3 else (1, 150)
    prepare(scratch)
    program, draw = Program(program_path), random.Random(seed)
    commands = list(commands_of(program))
    check_help(program, commands)
    check_tables(program, draw)
    statuses = check_random_lines(program, draw, commands, count)
    told = ", ".join(f"{n} with {'no end' if s is None else s}" for s, n in sorted(statuses.items(), key=str))
    print(f"{len(commands)} verbs, seed {seed}: {count} lines ({told}), {program.failures} failures")
    sys.exit(1 if program.failures else 0)


main()
