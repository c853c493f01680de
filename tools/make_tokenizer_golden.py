#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/stages.json: small tokenizer.json files, one per stage that Sinter supports, with what
the Hugging Face `tokenizers` library (pip install tokenizers) encodes and decodes with them.

    python3 tools/make_tokenizer_golden.py OUT.json
"""
import json
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TRAINING = [
    "First Citizen: Before we proceed any further, hear me speak. You are all resolved rather to die than to famish?",
    "the quick brown fox jumps over the lazy dog; it's 1234567 times faster than 89 café naïve dogs, isn't it?",
    "def main():\n    return [x**2 for x in range(10)]\n\n\nfor (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    "наш мир это текст  λόγος  日本語のテキスト 中文分词 😀 ½ ² Ⅷ ﬁ Å é",
] * 3

TEXTS = [
    "", " ", "   ", "\n", "Hello world", " Hello  world ", "the quick brown fox", "it's 1234 times, isn't it? 12.5%",
    "First Citizen:\n\n  Before we proceed", "a[i] += b[i];\t// x", "naïve café Å é ﬁ ½²", "日本語のテキスト 中文", "😀 λόγος мир",
    "x<sep>y <sep> z<sep>", "a <w> b<w>c <w>", "  [L] x [R]  y[B] ", "<bos>hi<eos>", "HELLO İstanbul ΑΣ",
    "\u2581already marked \u2581", "tab\tnbsp\u00a0em\u2003end", "foo_bar-baz...!?", "$5 + 3 = 8 ~ ^ `|`", "e\u0301 A\u030a", "zero\u200bwidth",
]


def small_bpe(byte_level, **model_options):
    tokenizer = Tokenizer(models.BPE(**model_options))
    alphabet = []
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<bos>", "<eos>"]
    if model_options.get("byte_fallback"):
        special += [f"<0x{b:02X}>" for b in range(256)]
    options = {k: v for k, v in model_options.items() if k in ("continuing_subword_prefix", "end_of_word_suffix")}
    trainer = trainers.BpeTrainer(vocab_size=len(special) + (400 if byte_level else 260), special_tokens=special, show_progress=False,
                                  initial_alphabet=alphabet, **options)
    tokenizer.train_from_iterator(TRAINING, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
    spec["normalizer"] = spec["pre_tokenizer"] = spec["decoder"] = spec["post_processor"] = None
    return spec


def stage(component):
    return json.loads(component.__getstate__())


def add_tokens(spec, tokens):
    next_id = max(spec["model"]["vocab"].values()) + 1
    for i, (content, flags) in enumerate(tokens):
        token = dict(id=next_id + i, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
        token.update(flags)
        spec["added_tokens"].append(token)


def variants():
    byte = small_bpe(True)
    char = small_bpe(False, unk_token="<unk>", fuse_unk=True)
    fallback = small_bpe(False, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    byte_pre, byte_dec = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    meta_pre, meta_dec = pre_tokenizers.Metaspace(), decoders.Metaspace()
    fuse_dec = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])

    def make(base, pre=None, norm=None, dec=None, post=None, added=(), **model):
        spec = json.loads(json.dumps(base))
        for key, part in (("pre_tokenizer", pre), ("normalizer", norm), ("decoder", dec), ("post_processor", post)):
            spec[key] = stage(part) if part is not None else None
        add_tokens(spec, added)
        spec["model"].update(model)
        return spec

    seq = pre_tokenizers.Sequence
    yield "byte level", make(byte, byte_pre, dec=byte_dec)
    yield "byte level with prefix space", make(byte, pre_tokenizers.ByteLevel(add_prefix_space=True), dec=byte_dec)
    yield "byte level without regex", make(byte, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), dec=byte_dec)
    yield "byte level, ignore_merges", make(byte, byte_pre, dec=byte_dec, ignore_merges=True)
    yield "digits then byte level", make(byte, seq([pre_tokenizers.Digits(individual_digits=True), byte_pre]), dec=byte_dec)
    yield "punctuation, byte level, digits", make(byte, seq([pre_tokenizers.Punctuation("contiguous"), byte_pre, pre_tokenizers.Digits()]), dec=byte_dec)
    for norm in (normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(),
                 normalizers.Strip(), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
                 normalizers.Replace(Regex("[0-9]+"), "N"), normalizers.Replace("the", "THE"), normalizers.Prepend("_")):
        yield f"normalizer {stage(norm)}", make(byte, byte_pre, norm, byte_dec)
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        split = pre_tokenizers.Split(Regex("[aeiou ]"), behavior)
        yield f"split {behavior}", make(byte, seq([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), dec=byte_dec)
    inverted = pre_tokenizers.Split(Regex("[a-z]+"), "removed", invert=True)
    yield "split inverted", make(byte, seq([inverted, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), dec=byte_dec)
    text_split = pre_tokenizers.Split("the", "isolated")
    yield "split by text", make(byte, seq([text_split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), dec=byte_dec)
    for name, pre in (("whitespace", pre_tokenizers.Whitespace()), ("whitespace split", pre_tokenizers.WhitespaceSplit()),
                      ("punctuation", pre_tokenizers.Punctuation()), ("bert", pre_tokenizers.BertPreTokenizer()),
                      ("delimiter", pre_tokenizers.CharDelimiterSplit("e"))):
        yield name, make(char, pre, dec=fuse_dec)
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            pre = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
            yield f"metaspace {scheme} {split}", make(char, pre, dec=decoders.Metaspace(prepend_scheme=scheme), added=[("<sep>", {})])
    llama = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    yield "byte fallback", make(fallback, None, llama, fuse_dec)
    yield "unknowns not fused", make(char, meta_pre, dec=meta_dec, fuse_unk=False)
    yield "no unknown token", make(char, meta_pre, dec=meta_dec, unk_token=None)
    yield "subword prefix", make(small_bpe(False, unk_token="<unk>", continuing_subword_prefix="##"), pre_tokenizers.Whitespace())
    yield "word suffix", make(small_bpe(False, unk_token="<unk>", end_of_word_suffix="</w>"), pre_tokenizers.Whitespace(), dec=decoders.BPEDecoder())
    flags = [("<sep>", {}), ("<w>", {"single_word": True}), ("[L]", {"lstrip": True}), ("[R]", {"rstrip": True}),
             ("[B]", {"lstrip": True, "rstrip": True, "special": True}), ("Hello w", {"normalized": True}), ("QUICK", {"normalized": True})]
    yield "added tokens", make(byte, byte_pre, normalizers.Lowercase(), byte_dec, added=flags)
    template = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)])
    yield "template", make(byte, byte_pre, dec=byte_dec, post=template)
    yield "template after byte level", make(byte, byte_pre, dec=byte_dec, post=processors.Sequence([processors.ByteLevel(), template]))


def main():
    rows = []
    for name, spec in variants():
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        cases = []
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "with_template": tokenizer.encode(text).ids,
                          "decoded": tokenizer.decode(ids, skip_special_tokens=False), "skipped": tokenizer.decode(ids, skip_special_tokens=True)})
        rows.append({"name": name, "tokenizer": spec, "cases": cases})
    with open(sys.argv[1], "w") as out:
        json.dump(rows, out, ensure_ascii=True, separators=(",", ":"))
    print(len(rows), "tokenizers")


if __name__ == "__main__":
    main()
