#!/usr/bin/env python3
"""Training steps of GPT-2 124M on the CPU, Sinter's and PyTorch's in turns: one step of each, then the next.

    taskset -c 0-1 python3 bench/torch_steps_in_turns.py build/sinter MODEL.py [--cases bf16x1024,...] [--seconds 60]

What else a machine does changes within seconds, so steps are compared with their neighbours in time. MODEL.py has a
class LM(config) for PyTorch whose forward(tokens, targets) is the loss; both sides train B 4 x T tokens with AdamW and
clipping, in fp32 or in bf16 (PyTorch: autocast). Printed: mean and median step of both, the ratio of the means, and of
all pairs of neighbours the median ratio and how many are at 3 or above.
"""
import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import time

import torch

SEQUENCES = 4


def load_model_class(path):
    spec = importlib.util.spec_from_file_location("peer_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LM


class Peer:
    def __init__(self, model_class, form, length):
        torch.manual_seed(0)
        self.form = form
        self.model = model_class(dict(kind="gpt2", V=50304, D=768, H=12, L=12, T=length, tie=True))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                           fused=True)
        self.tokens = torch.randint(0, 50304, (SEQUENCES, length + 1))
        self.step()

    def step(self):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.form == "bf16"):
            loss = self.model(self.tokens[:, :-1], self.tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return 1e3 * (time.perf_counter() - start)


class Ours:
    def __init__(self, program, case):
        self.process = subprocess.Popen([program, "bench", "train_step", "--turns", case], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.read()  # "ready"

    def read(self):
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{' '.join(self.process.args)} ended with status {self.process.wait()}")
        return line

    def step(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # read() says what it ended with
        return float(self.read())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(program, model_class, case, seconds):
    form, length = case.split("x")
    ours, peer = Ours(program, case), Peer(model_class, form, int(length))
    pairs, begin = [], time.time()
    while len(pairs) < 3 or time.time() - begin < seconds:
        # Each is first in half of the rounds.
        if len(pairs) % 2:
            a, b = ours.step(), peer.step()
        else:
            b, a = peer.step(), ours.step()
        pairs.append((a, b))
    ours.close()
    mine, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    ratios = sorted(b / a for a, b in pairs)
    print(f"{form} {SEQUENCES} x {length}: ours {statistics.mean(mine):.0f} ms mean, {statistics.median(mine):.0f} "
          f"median; PyTorch {statistics.mean(theirs):.0f}, {statistics.median(theirs):.0f}; ratio of the means "
          f"{statistics.mean(theirs) / statistics.mean(mine):.2f}, of pairs {statistics.median(ratios):.2f} "
          f"({ratios[0]:.2f} to {ratios[-1]:.2f}; {sum(r >= 3 for r in ratios)} of {len(ratios)} at 3 or above)",
          flush=True)
    print("   pairs, ms: " + ", ".join(f"{a:.0f}/{b:.0f}" for a, b in pairs), flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("program")
    arguments.add_argument("model")
    arguments.add_argument("--cases", default="bf16x1024,bf16x64,fp32x1024,fp32x64")
    arguments.add_argument("--seconds", type=float, default=60, help="for each case")
    given = arguments.parse_args()
    cases = [case.strip() for case in given.cases.split(",")]
    for case in cases:
        if not re.fullmatch(r"(fp32|bf16)x\d+", case):
            arguments.error(f"--cases has '{case}'; expected fp32 or bf16, an x and a length, as in bf16x1024")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    model_class = load_model_class(given.model)
    for case in cases:
        compare(given.program, model_class, case, given.seconds)


if __name__ == "__main__":
    main()
