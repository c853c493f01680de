#!/usr/bin/env python3
"""RoPE frequencies of every scaling by Hugging Face transformers, for src/spec/rope_test.cc.

usage: rope.py > rope.json

A list of {"name", "rope_parameters", "head_dim", "max_position_embeddings", "length", "inv_freq", "scale"}: `length` is the
sequence's, on which only dynamic scaling depends; `scale` multiplies cosines and sines.
"""
import json

import transformers as tf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CASES = [
    # name, rope_type, theta, head_dim, max_position_embeddings, length, further parameters
    ("linear", "linear", 10000.0, 16, 128, 48, dict(factor=3.0)),
    ("dynamic inside the trained length", "dynamic", 10000.0, 16, 64, 40, dict(factor=2.0)),
    ("dynamic past the trained length", "dynamic", 10000.0, 16, 32, 48, dict(factor=2.0)),
    ("dynamic with a trained length that does not count", "dynamic", 500000.0, 64, 128, 300,
     dict(factor=4.0, original_max_position_embeddings=32)),
    ("llama3 as published", "llama3", 500000.0, 128, 131072, 48,
     dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    ("llama3 with other borders", "llama3", 10000.0, 32, 256, 48,
     dict(factor=32.0, low_freq_factor=2.0, high_freq_factor=8.0, original_max_position_embeddings=128)),
    ("yarn", "yarn", 10000.0, 32, 128, 48, dict(factor=4.0, original_max_position_embeddings=32)),
    ("yarn as Qwen publishes it", "yarn", 1000000.0, 128, 131072, 48,
     dict(factor=4.0, original_max_position_embeddings=32768)),
    ("yarn with other betas", "yarn", 10000.0, 64, 512, 48,
     dict(factor=8.0, original_max_position_embeddings=64, beta_fast=8.0, beta_slow=0.5)),
    ("yarn without truncation", "yarn", 10000.0, 64, 512, 48,
     dict(factor=8.0, original_max_position_embeddings=64, truncate=False)),
    ("yarn with mscale", "yarn", 10000.0, 32, 128, 48,
     dict(factor=4.0, original_max_position_embeddings=32, mscale=0.7, mscale_all_dim=1.3)),
    ("yarn with its factor written out", "yarn", 10000.0, 32, 128, 48,
     dict(factor=4.0, original_max_position_embeddings=32, attention_factor=1.7)),
]


def main():
    out = []
    for name, kind, theta, head_dim, positions, length, more in CASES:
        parameters = dict(rope_type=kind, rope_theta=theta, **more)
        config = tf.LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
                                max_position_embeddings=positions, rope_parameters=dict(parameters))
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
        out.append(dict(name=name, rope_parameters=parameters, head_dim=head_dim, max_position_embeddings=positions,
                        length=length, inv_freq=inv_freq.tolist(), scale=float(scale)))
    print("[" + ",\n ".join(json.dumps(case) for case in out) + "]")


if __name__ == "__main__":
    main()
