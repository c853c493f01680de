#!/usr/bin/env python3
"""Writes src/eval/language/data/*.zst: what langdetect and NLTK's English punkt model know, in the form the program reads.

usage: make_language_data.py LANGDETECT_FOLDER PUNKT_TAB_ENGLISH_FOLDER OUT_FOLDER      (needs the program zstd)

language_profiles.zst, lines of cells with tabs between them:
  profile NAME N1 N2 N3       a language and the sums of its n-grams of one, two and three characters
  blank CHARACTERS            of Latin-1 that count as blanks
  compose BASES MARKS ROWS... Vietnamese letters: one row for each mark, one character for each base
  same CHARACTERS             ideographs that count as the first of them
  gram NGRAM L COUNT ...      how often it stands in the texts of language L (by place), counted
punkt_english.zst:
  abbreviation TYPE | collocation TYPE TYPE | starter TYPE | word TYPE FLAGS
"""
import json
import os
import subprocess
import sys


def read_properties(path):
    found = {}
    for line in open(path, encoding="utf-8"):
        if "=" in line and not line.startswith("#"):
            key, value = line.rstrip("\n").split("=", 1)
            found[key] = value.encode("ascii").decode("unicode_escape")
    return found


def profile_lines(folder):
    names = sorted(os.listdir(folder + "/profiles"))
    grams = {}
    for place, name in enumerate(names):
        profile = json.load(open(f"{folder}/profiles/{name}", encoding="utf-8"))
        yield ["profile", profile["name"], *map(str, profile["n_words"])]
        for gram, count in profile["freq"].items():
            if 1 <= len(gram) <= 3:
                grams.setdefault(gram, []).append((place, count))
    strings = read_properties(folder + "/utils/messages.properties")
    yield ["blank", strings["NGram.LATIN1_EXCLUDE"]]
    rows = [strings["NORMALIZED_VI_CHARS_" + mark] for mark in ("0300", "0301", "0303", "0309", "0323")]
    yield ["compose", strings["TO_NORMALIZE_VI_CHARS"], strings["DMARK_CLASS"], *rows]
    for key in strings:
        if key.startswith("NGram.KANJI_"):
            yield ["same", strings[key]]
    for gram in sorted(grams):
        yield ["gram", gram, *(str(cell) for pair in grams[gram] for cell in pair)]


def punkt_lines(folder):
    def rows(name):
        return sorted(line.split("\t") for line in open(f"{folder}/{name}", encoding="utf-8").read().split("\n") if line)

    for kind, name in (("abbreviation", "abbrev_types.txt"), ("collocation", "collocations.tab"), ("starter", "sent_starters.txt"),
                       ("word", "ortho_context.tab")):
        for row in rows(name):
            yield [kind, *row]


def main():
    langdetect, punkt, out = sys.argv[1:]
    for name, lines in (("language_profiles", profile_lines(langdetect)), ("punkt_english", punkt_lines(punkt))):
        text = "".join("\t".join(cells) + "\n" for cells in lines)
        assert all(len(line.split("\t")) > 1 for line in text.split("\n")[:-1])
        packed = subprocess.run(["zstd", "-19", "--ultra", "-22", "-c"], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout
        open(f"{out}/{name}.zst", "wb").write(packed)
        print(name, len(text), len(packed))


if __name__ == "__main__":
    main()
