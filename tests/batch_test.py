#!/usr/bin/env python3
"""`sinter batch`: answers, errors, interruption at any moment, resume.

usage: batch_test.py PROGRAM SCRATCH    (a model folder stands in SCRATCH/model)
"""
import json
import os
import signal
import subprocess
import sys
import time

program, scratch = sys.argv[1:3]
model = scratch + "/model"


def write(name, lines):
    path = f"{scratch}/{name}"
    with open(path, "w") as f:
        f.writelines((l if isinstance(l, str) else json.dumps(l)) + "\n" for l in lines)
    return path


def ask(number, body, url="/v1/completions"):
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": body}


def run(source, out, status=0, *options):
    done = subprocess.run([program, "batch", source, out, "--model", model, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"exit {done.returncode} instead of {status}: {done.stderr}"
    return done.stderr


def answers(path):
    lines = [json.loads(l) for l in open(path)]
    by_id = {l["custom_id"]: l["response"] for l in lines}
    assert len(by_id) == len(lines), "a request was answered twice"
    return by_id


def text_of(answer):
    assert answer["status_code"] == 200, answer
    return answer["body"]["choices"][0]["text"]


def main():
    body = {"prompt": "Once upon", "max_tokens": 12, "seed": 5, "ignore_eos": True}
    requests = [ask(i, {**body, "seed": i + 1}) for i in range(30)]
    requests += [ask(30, {**body, "temperature": -3}), ask(31, {"input": "Once"}, "/v1/embeddings"), ask(32, {**body, "model": "other"}),
                 ask(33, {"prompt": ["a", "b"], "max_tokens": 3, "n": 2})]
    source, out = write("in.jsonl", requests), scratch + "/out.jsonl"
    said = run(source, out)
    assert "34 requests answered; 2 with an error" in said, said
    first = answers(out)
    assert set(first) == {r["custom_id"] for r in requests}
    assert first["r30"]["status_code"] == 400 and "temperature" in first["r30"]["body"]["error"]["message"]
    assert first["r32"]["status_code"] == 404 and len(first["r31"]["body"]["data"][0]["embedding"]) > 0
    assert len(first["r33"]["body"]["choices"]) == 4
    alone = subprocess.run([program, "generate", model, "--prompt", "Once upon", "--max-tokens", "12", "--seed", "8", "--ignore-eos",
                            "--temperature", "1", "--top-p", "1"], capture_output=True, text=True, check=True).stdout
    assert "Once upon" + text_of(first["r7"]) == alone.rstrip("\n"), "alone and in a batch differ"

    # All is answered: nothing is asked again. Half a line at the end is cut off and its request asked again.
    before = open(out).read()
    run(source, out)
    assert open(out).read() == before
    os.truncate(out, len(before.encode()) - 20)
    run(source, out)
    assert answers(out).keys() == first.keys()

    # SIGTERM and kill -9 in the middle: what was answered stays, the same command goes on.
    long = [ask(i, {**body, "max_tokens": 3 if i < 5 else 60, "seed": i + 1}) for i in range(60)]
    source, cut = write("long.jsonl", long), scratch + "/cut.jsonl"
    for sent in (signal.SIGTERM, signal.SIGKILL):
        job = subprocess.Popen([program, "batch", source, cut, "--model", model, "--max-running", "4"], stderr=subprocess.PIPE, text=True)
        have = sum(1 for _ in open(cut)) if os.path.exists(cut) else 0
        while job.poll() is None and (not os.path.exists(cut) or sum(1 for _ in open(cut)) < have + 6):
            time.sleep(0.005)
        job.send_signal(sent)
        said = job.communicate(timeout=60)[1]
        if job.returncode != 0 and sent == signal.SIGTERM:
            assert job.returncode == 1 and "the same command goes on from there" in said, said
    run(source, cut)
    assert {k: text_of(v) for k, v in answers(cut).items()} == {r["custom_id"]: text_of(answers(cut)[r["custom_id"]]) for r in long}
    whole = scratch + "/whole.jsonl"
    run(source, whole)
    assert {k: text_of(v) for k, v in answers(whole).items()} == {k: text_of(v) for k, v in answers(cut).items()}, "interruption changed an answer"

    # What is wrong with the file is said before the first token, with its line.
    for lines, words in [([ask(1, body), "{"], "in2.jsonl:2"), ([ask(1, body), ask(1, body)], "was line 1's"), ([{**ask(1, body), "method": "GET"}], "POST"),
                         ([ask(1, body, "/v1/complations")], "did you mean"), ([ask(1, {**body, "stream": True})], "stream"), ([], "no requests")]:
        said = run(write("in2.jsonl", lines), scratch + "/out2.jsonl", 1)
        assert words in said, said
    said = run(write("in2.jsonl", [ask(77, body)]), out, 1)
    assert "no answer to a request of this batch" in said, said
    said = run(write("in2.jsonl", [ask(1, body)]), "/dev/full", 1)
    assert "cannot write '/dev/full'" in said, said
    said = run(f"{scratch}/in2.jsonl", f"{scratch}/in2.jsonl", 2)
    assert "give the answers another file" in said, said


main()
