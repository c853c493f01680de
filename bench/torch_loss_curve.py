#!/usr/bin/env python3
"""Trains GPT-2 with PyTorch from a Hugging Face folder on batches that `sinter data batches` wrote, with AdamW, clipping and the
schedule of a sinter recipe, and prints one JSON line per step: {"step", "loss", "grad_norm"}.

Usage: torch_loss_curve.py MODEL_FOLDER BATCHES.safetensors RECIPE.toml OUT.jsonl [--validation FILE] [--compile]
       [--device cpu] [--steps N]

The recipe is the one that `sinter train --print-recipe` prints, so every key is there. fp32 weights, bf16 autocast where the
recipe says bf16, SDPA, fused AdamW: what a PyTorch user would write."""
import argparse
import json
import math
import struct
import time
import tomllib

import torch
import torch.nn as nn
import torch.nn.functional as F


def read_safetensors(path, device="cpu"):
    kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I32": torch.int32}
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        base = file.tell()
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            file.seek(base + begin)
            raw = bytearray(file.read(end - begin))
            tensors[name] = torch.frombuffer(raw, dtype=kinds[entry["dtype"]]).reshape(entry["shape"]).to(device)
    return tensors


class Block(nn.Module):
    def __init__(self, width, heads, eps):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, eps = config["n_embd"], config["layer_norm_epsilon"]
        self.token = nn.Embedding(config["vocab_size"], width)
        self.position = nn.Embedding(config["n_positions"], width)
        self.blocks = nn.ModuleList(Block(width, config["n_head"], eps) for _ in range(config["n_layer"]))
        self.norm = nn.LayerNorm(width, eps=eps)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.token.weight)  # tied
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-1,
                               reduction="sum")

    @torch.no_grad()
    def load(self, weights):
        """Hugging Face's names; its linear layers are stored transposed."""
        weights = {name.removeprefix("transformer."): value for name, value in weights.items()}
        self.token.weight.copy_(weights["wte.weight"])
        self.position.weight.copy_(weights["wpe.weight"])
        self.norm.weight.copy_(weights["ln_f.weight"])
        self.norm.bias.copy_(weights["ln_f.bias"])
        names = {"norm1": "ln_1", "norm2": "ln_2", "qkv": "attn.c_attn", "out": "attn.c_proj", "up": "mlp.c_fc",
                 "down": "mlp.c_proj"}
        for i, block in enumerate(self.blocks):
            for ours, theirs in names.items():
                layer = getattr(block, ours)
                weight = weights[f"h.{i}.{theirs}.weight"]
                layer.weight.copy_(weight.t() if weight.dim() == 2 else weight)
                layer.bias.copy_(weights[f"h.{i}.{theirs}.bias"])


def lr_factor(schedule, step, steps):
    """As src/train/schedule.cc."""
    warmup = schedule["warmup"]
    if step < warmup:
        return (step + 1) / (warmup + 1)
    left = max(steps - 1 - warmup, 1)
    share = min((step - warmup) / left, 1.0)
    final = schedule["final_ratio"]
    if schedule["kind"] == "cosine":
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * share))
    if schedule["kind"] == "linear":
        return 1 + (final - 1) * share
    if schedule["kind"] == "constant":
        return 1.0
    raise SystemExit(f"schedule {schedule['kind']} is not written here")


def main():
    parser = argparse.ArgumentParser()
    for name in ("model", "batches", "recipe", "out"):
        parser.add_argument(name)
    parser.add_argument("--validation")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=0, help="stop early; the schedule stays the recipe's")
    args = parser.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = True
    with open(args.recipe, "rb") as file:
        recipe = tomllib.load(file)
    with open(args.model + "/config.json") as file:
        config = json.load(file)
    device = args.device
    model = Gpt2(config).to(device)
    model.load(read_safetensors(args.model + "/model.safetensors"))
    T = recipe["data"]["sequence_length"]
    batches = read_safetensors(args.batches)
    is_bf16 = recipe["train"]["precision"] == "bf16"
    per_step = recipe["train"]["batch_tokens"] // (recipe["train"]["micro_batch"] * T)
    steps = recipe["train"]["steps"]

    options = recipe["optimizer"]
    assert options["kind"] == "adamw"
    decays = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": options["weight_decay"]},
                                   {"params": others, "weight_decay": 0.0}], lr=options["lr"],
                                  betas=(options["beta1"], options["beta2"]), eps=options["eps"], fused=device == "cuda")
    run = torch.compile(model) if args.compile else model

    def loss_of(tokens, targets):
        tokens, targets = (t.view(-1, T).long().to(device, non_blocking=True) for t in (tokens, targets))
        with torch.autocast(device, torch.bfloat16, enabled=is_bf16):
            return run(tokens, targets)

    records, begin = [], time.time()
    for step in range(min(args.steps or steps, steps)):
        rows = range(step * per_step, (step + 1) * per_step)
        count = max(sum(int((batches["targets"][i] >= 0).sum()) for i in rows), 1)
        total = torch.zeros((), device=device)
        for i in rows:
            loss = loss_of(batches["tokens"][i], batches["targets"][i]) / count
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        for group in optimizer.param_groups:
            group["lr"] = options["lr"] * lr_factor(recipe["schedule"], step, steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        records.append((step + 1, total, norm))
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.time() - begin
    with open(args.out, "w") as out:
        for step, loss, norm in records:
            out.write(json.dumps({"step": step, "loss": loss.item(), "grad_norm": norm.item()}) + "\n")
    line = f"torch {torch.__version__}: {len(records)} steps in {seconds:.1f} s, loss {records[-1][1].item():.4f}"
    if args.validation:
        held = read_safetensors(args.validation)
        with torch.no_grad():
            total = sum(loss_of(tokens, targets).item() for tokens, targets in zip(held["tokens"], held["targets"]))
        line += f", validation loss {total / int((held['targets'] >= 0).sum()):.4f}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
