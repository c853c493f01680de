#!/usr/bin/env python3
"""GGUF files on the CPU, Sinter's and llama.cpp's in turns: one round of each, then the next.

    python3 bench/llama_cpp_in_turns.py build/sinter LLAMA_BENCH FILE.gguf ... [--threads 2] [--rounds 3]

LLAMA_BENCH is llama.cpp's program llama-bench. A round is a prompt of 256 tokens and 64 decoded ones of both, and of
Sinter also 8 sequences at once. Printed for each file: medians over all samples of all rounds, the ratio to
llama.cpp, bytes read a second as a share of the rate at which memory was read in the same rounds, and how much more
tokens a batch of 8 gives than one sequence.
"""
import argparse
import json
import os
import statistics
import subprocess


def ours(args, file):
    command = [args.sinter, "bench", "model", file, "--threads", str(args.threads), "--rounds", "3", "--json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = {f"{row['work']} {row['batch']:.0f}": row["rate"] for row in rows}
    first = next(row for row in rows if row["work"] == "decode" and row["batch"] == 1)
    return found, first["share"], first["read"]


def theirs(args, file):
    command = [args.llama_bench, "-m", file, "-t", str(args.threads), "-p", "256", "-n", "64", "-r", "3", "-o", "json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {("prompt 1" if row["n_prompt"] else "decode 1"): row["samples_ts"] for row in rows}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sinter")
    parser.add_argument("llama_bench")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for file in args.files:
        mine, peer, shares, reads = {}, {}, [], []
        for _ in range(args.rounds):
            for name, samples in theirs(args, file).items():
                peer.setdefault(name, []).extend(samples)
            found, share, read = ours(args, file)
            shares.append(share)
            reads.append(read)
            for name, rate in found.items():
                mine.setdefault(name, []).append(rate)
        print(f"{os.path.basename(file)}, {args.threads} threads, load {os.getloadavg()[0]:.1f}")
        for name, rates in mine.items():
            line = f"  {name:9} {statistics.median(rates):8.2f} tok/s ({min(rates):.2f} to {max(rates):.2f})"
            if name in peer:
                other = statistics.median(peer[name])
                line += (f"   llama.cpp {other:8.2f} ({min(peer[name]):.2f} to {max(peer[name]):.2f})"
                         f"   {statistics.median(rates) / other:.2f} x")
            if name == "decode 1":
                line += f"   {statistics.median(reads):.1f} GB/s, {statistics.median(shares):.1f} % of memory's rate"
            if name == "decode 8":
                line += f"   {statistics.median(rates) / statistics.median(mine['decode 1']):.2f} x batch 1"
            print(line, flush=True)


if __name__ == "__main__":
    main()
