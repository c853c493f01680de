#!/usr/bin/env python3
"""A made-up crawl of many gigabytes through all stages of the pipeline, in bounded memory.

usage: data_crawl_test.py SINTER TOKENIZER [--gb 10] [--memory-gib 2] [--folder FOLDER]
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
import time

FILE_BYTES = 1 << 30
STOP = "the be to of and that have with".split()


def make_words(rng, count):
    syllables = [c + v for c in "bcdfghklmnprstvw" for v in "aeiou"] + ["an", "er", "is", "on", "al"]
    return ["".join(rng.choice(syllables) for _ in range(rng.randint(1, 4))) for _ in range(count)]


def make_paragraphs(rng, count):
    words = make_words(rng, 20000)
    found = []
    for _ in range(count):
        sentences = []
        for _ in range(rng.randint(3, 6)):
            line = [rng.choice(words if rng.random() < .7 else STOP) for _ in range(rng.randint(8, 18))]
            sentences.append(" ".join(line).capitalize() + ".")
        found.append(" ".join(sentences))
    return found


def page(rng, paragraphs, number):
    """Articles with menus; every 9th is an exact copy's text, every 11th a near copy, some short, some spam."""
    body = [rng.choice(paragraphs) for _ in range(rng.randint(4, 40))]
    menu = "".join(f'<li><a href="/{i}">{i}</a></li>' for i in range(12))
    title = f"Page {number}"
    text = "".join(f"<p>{p}</p>\n" for p in body)
    if number % 13 == 0:
        text = "<p>Buy now.</p>" * 30
    return title, menu, text


def write_crawl(folder, total, seed):
    rng = random.Random(seed)
    paragraphs = make_paragraphs(rng, 30000)
    written = number = copies = 0
    recent = []
    file = None
    while written < total:
        if file is None or file.tell() >= FILE_BYTES:
            if file:
                file.close()
            file = open(f"{folder}/crawl-{written // FILE_BYTES:05}.warc", "wb")
        if number % 9 == 8 and recent:
            title, menu, text = rng.choice(recent)
            copies += 1
        elif number % 11 == 10 and recent:
            title, menu, text = rng.choice(recent)
            text += f"<p>{rng.choice(paragraphs)}</p>"
        else:
            title, menu, text = page(rng, paragraphs, number)
            if number % 50 == 0:
                recent = (recent + [(title, menu, text)])[-200:]
        html = f"<!doctype html><html><head><title>{title}</title></head><body><nav><ul>{menu}</ul></nav><article><h1>{title}</h1>{text}</article><footer>all rights</footer></body></html>"
        if number % 1000 == 999:
            html = html.encode()[: len(html) // 2].decode(errors="ignore") + "<div>" * 3000  # broken and deep
        http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(html.encode())}\r\n\r\n{html}".encode()
        head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:x:{number}>\r\nWARC-Target-URI: http://site{number % 977}.example/{number}\r\nWARC-Date: 2024-01-01T00:00:00Z\r\nContent-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n".encode()
        record = head + http + b"\r\n\r\n"
        if number % 5000 == 4999:
            record = record[: len(record) // 3]  # cut off: the next record follows at once
        file.write(record)
        written += len(record)
        number += 1
    file.close()
    with open(folder + "/counts", "w") as f:
        f.write(f"{number} {copies}")
    return number, copies


def run_bounded(command):
    """Runs it; gives its output, the largest resident size in bytes, and seconds."""
    start = time.time()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"{command}: status {status}"
    return out, usage.ru_maxrss * 1024, time.time() - start


def main():
    p = argparse.ArgumentParser()
    p.add_argument("sinter")
    p.add_argument("tokenizer")
    p.add_argument("--gb", type=float, default=10)
    p.add_argument("--memory-gib", type=float, default=2)
    p.add_argument("--folder", default=None, help="where the crawl stands (default: a temporary folder)")
    p.add_argument("--made", default=None, help="a folder with a crawl of this seed and size, made before")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    scratch = tempfile.mkdtemp(prefix="sinter_crawl_", dir=a.folder)
    try:
        raw = a.made or scratch + "/raw"
        start = time.time()
        if a.made:
            pages, copies = map(int, open(raw + "/counts").read().split())
        else:
            os.makedirs(raw)
            pages, copies = write_crawl(raw, int(a.gb * 1e9), a.seed)
        print(f"{a.gb} GB, {pages} pages made in {time.time() - start:.0f} s", flush=True)
        rng = random.Random(a.seed)
        with open(scratch + "/train.txt", "w") as f:
            for line in make_paragraphs(rng, 400):
                f.write(f"__label__{'good' if len(line) % 2 else 'bad'} {line}\n")
        subprocess.run([a.sinter, "data", "rank", "train", scratch + "/train.txt", "-o", scratch + "/rank.bin", "--dim", "8", "--bucket", "5000"],
                       check=True, stdout=subprocess.DEVNULL)
        with open(scratch + "/items.jsonl", "w") as f:
            f.write(json.dumps({"query": "What stands in no page at all?", "label": "these thirteen words which nobody has written on any page of this crawl ever"}) + "\n")
        with open(scratch + "/words.txt", "w") as f:
            f.write("forbiddenword\n")
        with open(scratch + "/p.toml", "w") as f:
            f.write(f'''[run]
output = "{scratch}/out"
memory = 268435456
[[input]]
path = "{raw}"
[url]
banned_words = "{scratch}/words.txt"
[decontaminate]
items = ["{scratch}/items.jsonl"]
[rank]
model = "{scratch}/rank.bin"
label = "__label__good"
keep = 0.9
[tokenize]
tokenizer = "{a.tokenizer}"
''')
        out, most, seconds = run_bounded([a.sinter, "data", "run", scratch + "/p.toml", "--json"])
        report = json.loads(out)
        print(json.dumps({k: report[k] for k in ("documents", "kept", "tokens", "bad_records", "dropped")}, indent=1))
        print(f"{seconds:.0f} s, {a.gb * 1e3 / seconds:.1f} MB/s of crawl, at most {most / 2**30:.2f} GiB resident")
        assert most <= a.memory_gib * 2**30, f"{most / 2**30:.2f} GiB resident"
        assert report["documents"] > .99 * (pages - pages // 5000 * 2), report
        assert report["bad_records"] >= pages // 5000 * .9, report
        gone = report["dropped"]["dedup/exact_duplicate"]
        assert gone > .5 * copies, (gone, copies)
        assert report["kept"] > .3 * pages and report["tokens"] > 0, report
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
