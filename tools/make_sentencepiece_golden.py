#!/usr/bin/env python3
"""Writes a small SentencePiece BPE model (bytes as fallback) and what the sentencepiece library encodes and decodes with it.

    python3 tools/make_sentencepiece_golden.py OUT_FOLDER
"""
import io
import json
import sys

import sentencepiece

from make_tokenizer_golden import TEXTS, TRAINING


def main():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING * 4), model_writer=model, model_type="bpe", vocab_size=540, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98, hard_vocab_limit=False,
        user_defined_symbols=["<sep>"], minloglevel=2)
    with open(sys.argv[1] + "/small.model", "wb") as out:
        out.write(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    rows = [{"text": text, "ids": processor.encode(text), "decoded": processor.decode(processor.encode(text))} for text in TEXTS]
    with open(sys.argv[1] + "/small.model.json", "w") as out:
        json.dump(rows, out, separators=(",", ":"))


if __name__ == "__main__":
    main()
