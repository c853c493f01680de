#!/usr/bin/env python3
"""How long a user of a freshly started server waits: random bf16 weights of Llama 3.2 1B's shape (2.5 GB), in the page cache.

usage: first_token.py PROGRAM SCRATCH [--times 5] [-- OPTIONS OF sinter serve]

Prints the time from the start of `sinter serve` until it listens and until /ready says yes, then from sending a request to
its first token, for the first request and for further ones.
"""
import argparse
import http.client
import json
import os
import random
import struct
import subprocess
import time

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 2048, 16, 32, 8, 64, 8192, 128256
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
          "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate_size": FFN, "vocab_size": VOCAB, "max_position_embeddings": 8192,
          "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16"}


def shapes():
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        for name, rows, columns in (("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN), ("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN), ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN),
                                    ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM), ("mlp.gate_proj", FFN, HIDDEN), ("mlp.up_proj", FFN, HIDDEN), ("mlp.down_proj", HIDDEN, FFN)):
            yield p + name + ".weight", [rows, columns]
        yield p + "input_layernorm.weight", [HIDDEN]
        yield p + "post_attention_layernorm.weight", [HIDDEN]
    yield "model.norm.weight", [HIDDEN]


def make_model(program, folder):
    """Numbers of +-2^-7 to +-2^-5, a block of a million over and over; norms are ones."""
    os.makedirs(folder, exist_ok=True)
    if os.path.exists(folder + "/model.safetensors"):
        return
    with open(folder + "/config.json", "w") as f:
        json.dump(CONFIG, f)
    text = os.path.dirname(os.path.abspath(__file__)) + "/../data/stories/train.txt"
    subprocess.run([program, "tokenizer", "train", text, "--vocab-size", "2048", "--special", "<|endoftext|>", "--out", folder], check=True, stdout=subprocess.DEVNULL)
    header, at = {}, 0
    for name, shape in shapes():
        count = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    draw = random.Random(1)
    block = bytes(b for _ in range(1 << 20) for b in (draw.getrandbits(8), draw.choice((0x3C, 0xBC))))
    with open(folder + "/model.safetensors.part", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes():
            left = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            piece = block if len(shape) > 1 else b"\x80\x3f" * HIDDEN
            while left > 0:
                f.write(piece[: min(left, len(piece))])
                left -= len(piece)
    os.rename(folder + "/model.safetensors.part", folder + "/model.safetensors")


def first_token(port, prompt):
    start = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 4, "stream": True, "temperature": 0, "ignore_eos": True}))
    reply = c.getresponse()
    assert reply.status == 200, reply.read()
    reply.readline()
    seconds = time.monotonic() - start
    reply.read()
    c.close()
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program"), parser.add_argument("scratch"), parser.add_argument("--times", type=int, default=5)
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    folder = args.scratch + "/llama-1b-random"
    make_model(args.program, folder)
    start = time.monotonic()
    size = 0
    with open(folder + "/model.safetensors", "rb", buffering=0) as f:
        while piece := f.read(1 << 24):
            size += len(piece)
    print(f"reading the {size / 1e9:.2f} GB from the page cache: {time.monotonic() - start:.2f} s")
    for turn in range(args.times):
        start = time.monotonic()
        server = subprocess.Popen([args.program, "serve", folder, "--port", "0", "--precision", "bf16", *args.options], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
        try:
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            listens = time.monotonic() - start
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            c.request("GET", "/ready")
            assert c.getresponse().status == 200
            ready = time.monotonic() - start
            first = first_token(port, "Once upon a time there was a little dog who")
            later = sorted(first_token(port, f"{i}. One day a girl named Lily went to the park") for i in range(5))
        finally:
            server.terminate()
            assert server.wait(timeout=60) == 0
        print(f"turn {turn + 1}: listens after {listens:.2f} s, ready after {ready:.2f} s, first token of the first request {first:.2f} s after it was sent; "
              f"further requests {later[2]:.2f} s (median of 5, to {later[-1]:.2f})", flush=True)


main()
