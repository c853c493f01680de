#!/usr/bin/env python3
"""Single-thread encoding speed of Sinter beside tiktoken (pip install tiktoken) on the same text, in one run.

    python3 bench/tiktoken_peer.py build/sinter TEXT VOCABULARY.tiktoken... [--rounds 3]

Both encode the whole text as ordinary text on one thread; the rounds alternate, and the best of each counts. Times are the
thread's CPU time, so that other work on the machine weighs on neither. The ids must be equal.
"""
import argparse
import base64
import json
import os
import pathlib
import subprocess
import time

import tiktoken
import tiktoken_ext.openai_public as public


def peer_encoding(path):
    ranks = {}
    for line in pathlib.Path(path).read_bytes().splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    name = pathlib.Path(path).stem
    # The library's own pattern, without its download of the vocabulary.
    keep = public.load_tiktoken_bpe
    public.load_tiktoken_bpe = lambda *args, **kwargs: ranks
    try:
        pattern = public.ENCODING_CONSTRUCTORS[name]()["pat_str"]
    finally:
        public.load_tiktoken_bpe = keep
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def sinter_speed(program, vocabulary, text):
    command = [program, "bench", "tokenizer", "--tokenizer", vocabulary, "--text", text, "--json", "--seconds", "0.5"]
    out = subprocess.run(command, check=True, capture_output=True, env={**os.environ, "SINTER_THREADS": "1"})
    rows = json.loads(out.stdout)["tokenizer"]
    return next(row["mb_per_s"] for row in rows if row["what"] == "encode" and row["threads"] == 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("text")
    parser.add_argument("vocabularies", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    raw = pathlib.Path(args.text).read_bytes()
    text = raw.decode()
    print(f"{'vocabulary':<14}{'sinter MB/s':>14}{'tiktoken MB/s':>16}{'ratio':>8}  ids equal")
    for vocabulary in args.vocabularies:
        encoding, ours, theirs = peer_encoding(vocabulary), 0.0, 0.0
        for _ in range(args.rounds):
            start = time.thread_time()
            ids = encoding.encode_ordinary(text)
            theirs = max(theirs, len(raw) / 1e6 / (time.thread_time() - start))
            ours = max(ours, sinter_speed(args.program, vocabulary, args.text))
        out = subprocess.run([args.program, "tokenizer", "encode", vocabulary, args.text], check=True, capture_output=True)
        equal = list(map(int, out.stdout.split())) == ids
        print(f"{pathlib.Path(vocabulary).stem:<14}{ours:>14.1f}{theirs:>16.1f}{ours / theirs:>8.1f}  {'yes' if equal else 'NO'}")


if __name__ == "__main__":
    main()
