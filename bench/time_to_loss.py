#!/usr/bin/env python3
"""How long a run takes to reach the last validation loss of another.

Usage: time_to_loss.py REFERENCE/metrics.jsonl RUN/metrics.jsonl... [--share 0.7]

Times are sums over steps (choosing kernels in the first steps counted, validation and checkpoints not). Exits 0 when some run gets
there within the share of the reference's time."""
import argparse
import json
import sys


def read(path):
    """(step, seconds so far, validation loss) wherever there is one."""
    seconds, points = 0.0, []
    with open(path) as file:
        for line in file:
            record = json.loads(line)
            seconds += record["seconds"]
            if record.get("validation_loss") is not None:
                points.append((record["step"], seconds, record["validation_loss"]))
    if not points:
        sys.exit(f"{path} has no validation loss")
    return points


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reference")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--share", type=float, default=0.7)
    args = parser.parse_args()
    steps, seconds, target = read(args.reference)[-1]
    print(f"reference: validation loss {target:.4f} after {steps} steps, {seconds:.1f} s")
    best = float("inf")
    for path in args.runs:
        points = read(path)
        reached = next((p for p in points if p[2] <= target), None)
        last = points[-1]
        line = f"{path}: {last[2]:.4f} after {last[0]} steps, {last[1]:.1f} s; "
        if reached:
            best = min(best, reached[1] / seconds)
            line += f"there at step {reached[0]} after {reached[1]:.1f} s = {100 * reached[1] / seconds:.1f} % of the time"
        else:
            line += "not reached"
        print(line)
    return 0 if best <= args.share else 1


if __name__ == "__main__":
    sys.exit(main())
