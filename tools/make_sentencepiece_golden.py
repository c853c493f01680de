#!/usr/bin/env python3
"""Writes two small SentencePiece BPE models and what the sentencepiece library encodes and decodes with them: small.model keeps
all spaces, spaces.model leaves out those at the ends and beside others.

    python3 tools/make_sentencepiece_golden.py OUT_FOLDER
"""
import io
import json
import random
import sys

import sentencepiece

from make_tokenizer_golden import TEXTS, TRAINING


def spaced_texts():
    """Random texts of spaces, the sign that a space is written as, words and a symbol of its own."""
    draw = random.Random(1)
    parts = [" ", "  ", "   ", "\u2581", "a", "the", "cat", ".", "\n", "é", "<sep>"]
    return ["".join(draw.choice(parts) for _ in range(draw.randrange(9))) for _ in range(120)]


def write(name, texts, removes_spaces):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING * 4), model_writer=model, model_type="bpe", vocab_size=540, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=removes_spaces, character_coverage=0.98, hard_vocab_limit=False,
        user_defined_symbols=["<sep>"], minloglevel=2)
    with open(f"{sys.argv[1]}/{name}.model", "wb") as out:
        out.write(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    rows = [{"text": text, "ids": processor.encode(text), "decoded": processor.decode(processor.encode(text))} for text in texts]
    with open(f"{sys.argv[1]}/{name}.model.json", "w") as out:
        json.dump(rows, out, separators=(",", ":"))


def main():
    write("small", TEXTS, False)
    write("spaces", TEXTS + spaced_texts(), True)


if __name__ == "__main__":
    main()
