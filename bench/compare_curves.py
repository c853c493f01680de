#!/usr/bin/env python3
"""Compares two loss curves (metrics.jsonl of `sinter train`, or the output of torch_loss_curve.py).

Usage: compare_curves.py OURS THEIRS [--limit 0.01] [--window 20]

Prints the largest relative difference step by step and of means over a window; exits 1 when the latter exceeds the limit."""
import argparse
import json
import sys


def read(path):
    losses = {}
    with open(path) as file:
        for line in file:
            record = json.loads(line)
            losses[record["step"]] = record["loss"]
    return losses


def means(values, window):
    return [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]


def largest(a, b):
    differences = [abs(x - y) / y for x, y in zip(a, b)]
    worst = max(range(len(differences)), key=differences.__getitem__)
    return differences[worst], worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ours")
    parser.add_argument("theirs")
    parser.add_argument("--limit", type=float, default=0.01)
    parser.add_argument("--window", type=int, default=20)
    args = parser.parse_args()
    ours, theirs = read(args.ours), read(args.theirs)
    steps = sorted(set(ours) & set(theirs))
    if len(steps) < args.window:
        sys.exit(f"only {len(steps)} steps are in both curves")
    a, b = [ours[s] for s in steps], [theirs[s] for s in steps]
    raw, at = largest(a, b)
    print(f"{len(steps)} steps; last losses {a[-1]:.4f} and {b[-1]:.4f}")
    print(f"largest difference of a step: {100 * raw:.3f} % at step {steps[at]} ({a[at]:.4f} and {b[at]:.4f})")
    smooth_a, smooth_b = means(a, args.window), means(b, args.window)
    smooth, at = largest(smooth_a, smooth_b)
    print(f"largest difference of means over {args.window} steps: {100 * smooth:.3f} % from step {steps[at]} on, "
          f"limit {100 * args.limit:.3f} %")
    signed = sum(x - y for x, y in zip(smooth_a, smooth_b)) / len(smooth_a)
    print(f"mean signed difference: {signed:+.5f}")
    for i in range(0, len(steps), max(len(steps) // 10, 1)):
        print(f"  step {steps[i]:5d}  ours {a[i]:.4f}  theirs {b[i]:.4f}  {100 * (a[i] - b[i]) / b[i]:+.3f} %")
    return 0 if smooth <= args.limit else 1


if __name__ == "__main__":
    sys.exit(main())
