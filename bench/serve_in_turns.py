#!/usr/bin/env python3
"""What the server costs beside the engine alone, and what it does at twice its capacity, by the program's own clients.

usage: serve_in_turns.py PROGRAM MODEL overhead [--turns 5] [--clients 16] [--requests 200] [--precision fp32]
       serve_in_turns.py PROGRAM MODEL overload [--turns 9] [--seconds 300] [--clients 8]

overhead: `sinter bench serve` on an engine in its own process and on `sinter serve` over loopback, in turns, the same
requests; the share of throughput that the server takes, as the median of the pairs.
overload: as many clients as places, then arrivals at twice the rate that came of it; the median time to the end of what
was admitted beside that at capacity, refusals, and how the server's memory grows.
"""
import argparse
import json
import statistics
import subprocess


class Server:
    def __init__(self, program, model, *options):
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.process.stdout.readline().strip()

    def memory(self):
        return int(open(f"/proc/{self.process.pid}/statm").read().split()[1]) * 4096

    def end(self):
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0


def load(program, target, *options):
    done = subprocess.run([program, "bench", "serve", target, "--json", *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    seen = json.loads(done.stdout)
    assert seen["serve_rates"]["failed"] == 0, seen["serve_rates"]
    return seen["serve_rates"], {row["what"]: row["p50_ms"] for row in seen["serve_latency"]}


def overhead(args):
    options = ["--clients", args.clients, "--requests", args.requests, "--prompt-tokens", 16, "--output-tokens", 128]
    pairs = []
    for turn in range(args.turns):
        own, own_times = load(args.program, args.model, "--precision", args.precision, *options)
        server = Server(args.program, args.model, "--precision", args.precision)
        over, over_times = load(args.program, server.address, *options)
        server.end()
        a, b = own["output_tokens_per_second"], over["output_tokens_per_second"]
        pairs.append(1 - b / a)
        print(f"turn {turn + 1}: engine {a:.0f} tokens/s (first token {own_times['to the first token']:.1f} ms), server {b:.0f} tokens/s "
              f"(first token {over_times['to the first token']:.1f} ms): {100 * pairs[-1]:+.1f} %", flush=True)
    print(f"the server takes {100 * statistics.median(pairs):.1f} % of the engine's throughput, {args.clients} clients, {args.precision} (median of {args.turns})")


def overload(args):
    places = args.clients
    server = Server(args.program, args.model, "--max-running", places, "--max-waiting", max(1, places // 4), "--precision", args.precision)
    options = ["--prompt-tokens", 16, "--output-tokens", 64]
    part, memory = args.seconds / args.turns / 2, []
    ratios, answered, refused = [], 0, 0
    for turn in range(args.turns):
        rates, at_capacity = load(args.program, server.address, "--clients", places, "--seconds", part, *options)
        assert rates["refused"] == 0, "refused at capacity"
        rate = 2 * rates["requests_per_second"]
        rates, beyond = load(args.program, server.address, "--clients", 16 * places, "--rate", rate, "--requests", max(20, int(rate * part)), *options)
        answered, refused = answered + rates["requests"], refused + rates["refused"]
        ratios.append(beyond["to the end"] / at_capacity["to the end"])
        memory.append(server.memory() / 2**20)
        print(f"turn {turn + 1}: at capacity {at_capacity['to the end']:.1f} ms, at twice the rate ({rate:.1f}/s) {beyond['to the end']:.1f} ms: {ratios[-1]:.2f}; "
              f"answered {rates['requests']:.0f}, refused {rates['refused']:.0f}; memory {memory[-1]:.1f} MiB", flush=True)
    server.end()
    print(f"{args.seconds:g} s: {answered:.0f} answered, {refused:.0f} refused with 429, none failed; median latency {statistics.median(ratios):.2f} of that at capacity; "
          f"memory {memory[-1] - memory[args.turns // 3]:+.1f} MiB in the last two thirds")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program"), parser.add_argument("model"), parser.add_argument("what", choices=["overhead", "overload"])
    parser.add_argument("--turns", type=int), parser.add_argument("--clients", type=int), parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300), parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    args.turns = args.turns or (5 if args.what == "overhead" else 9)
    args.clients = args.clients or (16 if args.what == "overhead" else 8)
    (overhead if args.what == "overhead" else overload)(args)


main()
