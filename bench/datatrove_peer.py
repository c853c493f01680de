#!/usr/bin/env python3
"""One core of `sinter data` beside datatrove (pip install 'datatrove[processing]' spacy 'xxhash<4') on the same documents, in one run.

    python3 bench/datatrove_peer.py build/sinter DOCUMENTS.jsonl [--rounds 3] [--repeat 20] [--threads 1,2]

Three works: FineWeb's four filters; MinHash signatures, 14 bands of 8 over 5-grams; and the whole pipeline: read, filter, scrub
e-mail and IP addresses, find near duplicates, write what is left. datatrove has its default English tokenizer (spaCy's).
The rounds alternate and the best of each side counts. Times are CPU times, so that other work on the machine weighs on neither:
datatrove's of this process with everything imported and a first pass made, Sinter's of the whole program with start and reading.
Sinter reads the documents --repeat times over, so that its start is a small share, as it is in real work; in the pipeline
the copies are told apart by a changed word in every five, else all but the first would go as duplicates.

With --threads it is the pipeline's wall times by one and by several threads instead; only worth something on a quiet machine.
"""
import argparse
import json
import os
import pathlib
import random
import re
import resource
import subprocess
import tempfile
import time


def child_seconds(command, threads=1):
    """CPU seconds and wall seconds of a command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "SINTER_THREADS": str(threads)})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - start


def write_pipeline(path, documents, output):
    path.write_text(f'[run]\noutput = "{output}"\npart_bytes = 1000000\n[[input]]\npath = "{documents}"\n')


class Sinter:
    def __init__(self, program, rows, folder, repeat):
        self.program, self.folder, self.repeat = program, folder, repeat
        rng = random.Random(1)
        for name, change in (("many", lambda text: text), ("varied", lambda text: varied(text, rng))):
            lines = [json.dumps({"id": f"{c}.{i}", "text": change(text)}) + "\n" for c in range(repeat) for i, text in enumerate(rows)]
            (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        self.runs = 0

    def filters(self):
        return child_seconds([self.program, "data", "filter", self.folder / "many.jsonl"])[0] / self.repeat

    def signatures(self):
        return child_seconds([self.program, "data", "dedup", self.folder / "many.jsonl", "-o", self.folder / "unique.jsonl"])[0] / self.repeat

    def pipeline(self):
        return self.run()[0] / self.repeat

    def run(self, threads=1):
        self.runs += 1
        recipe = self.folder / "p.toml"
        write_pipeline(recipe, self.folder / "varied.jsonl", self.folder / f"out{self.runs}")
        return child_seconds([self.program, "data", "run", recipe], threads)


class Datatrove:
    def __init__(self, rows, folder):
        os.environ.setdefault("DATATROVE_COLORIZE_LOGS", "0")
        os.environ.setdefault("TQDM_DISABLE", "1")
        from loguru import logger

        logger.disable("datatrove")
        self.rows, self.folder = rows, folder
        lines = [json.dumps({"id": str(i), "text": text}) + "\n" for i, text in enumerate(rows)]
        (folder / "once.jsonl").write_text("".join(lines), encoding="utf-8")

    def documents(self):
        from datatrove.data import Document

        return (Document(text=text, id=str(i)) for i, text in enumerate(self.rows))

    def steps(self):
        from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter

        return [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(filter_no_terminal_punct=False), FineWebQualityFilter()]

    def config(self):
        from datatrove.pipeline.dedup.minhash import MinhashConfig
        from datatrove.utils.hashing import HashConfig

        return MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="xxhash"))

    @staticmethod
    def drive(documents, steps):
        for step in steps:
            documents = step.run(documents, 0, 1)
        return documents if documents is None else sum(1 for _ in documents)

    def timed(self, work):
        start = time.process_time()
        work()
        return time.process_time() - start

    def filters(self):
        return self.timed(lambda: self.drive(self.documents(), self.steps()))

    def signatures(self):
        from datatrove.pipeline.dedup.minhash import MinhashDedupSignature

        with tempfile.TemporaryDirectory() as out:
            return self.timed(lambda: self.drive(self.documents(), [MinhashDedupSignature(out, self.config())]))

    def pipeline(self):
        from datatrove.pipeline.dedup.minhash import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
        from datatrove.pipeline.formatters import PIIFormatter
        from datatrove.pipeline.readers import JsonlReader
        from datatrove.pipeline.writers import JsonlWriter

        with tempfile.TemporaryDirectory() as t:
            def work():
                self.drive(None, [JsonlReader(str(self.folder), glob_pattern="once.jsonl"), *self.steps(), PIIFormatter(), JsonlWriter(f"{t}/kept")])
                self.drive(None, [JsonlReader(f"{t}/kept"), MinhashDedupSignature(f"{t}/sig", self.config())])
                for bucket in range(14):
                    MinhashDedupBuckets(f"{t}/sig", f"{t}/pairs", config=self.config()).run(None, bucket, 14)
                MinhashDedupCluster(f"{t}/pairs", f"{t}/remove", config=self.config()).run(None, 0, 1)
                self.drive(None, [JsonlReader(f"{t}/kept"), MinhashDedupFilter(f"{t}/remove"), JsonlWriter(f"{t}/unique")])

            return self.timed(work)


def varied(text, rng):
    """Another document of the same kind: words in each five are exchanged for others of the text."""
    words = re.split(r"(\s+)", text)
    for i in range(0, len(words), 10):
        words[i] = words[rng.randrange(0, len(words), 2)]
    return "".join(words)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("sinter")
    p.add_argument("documents", help=".jsonl with text")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--repeat", type=int, default=20)
    p.add_argument("--threads", default="", help="numbers of threads to compare, as 1,2")
    a = p.parse_args()
    rows = [json.loads(line)["text"] for line in open(a.documents, encoding="utf-8")]
    megabytes = sum(len(text.encode()) for text in rows) / 1e6
    print(f"{len(rows)} documents, {megabytes:.2f} MB of text, {a.rounds} rounds; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        sinter = Sinter(a.sinter, rows, folder, a.repeat)
        if not a.threads:
            return compare(sinter, Datatrove(rows, folder), megabytes, a.rounds)
        counts = [int(n) for n in a.threads.split(",")]
        rounds = [[sinter.run(n)[1] for n in counts] for _ in range(a.rounds)]
        best = {n: min(times) for n, times in zip(counts, zip(*rounds))}
        for n in counts:
            print(f"{n} threads: {best[n]:.2f} s, {megabytes * a.repeat / best[n]:.1f} MB/s, {best[counts[0]] / best[n]:.2f} x")


def compare(sinter, datatrove, megabytes, rounds):
    for name in ("filters", "signatures", "pipeline"):
        ours, theirs = getattr(sinter, name), getattr(datatrove, name)
        ours(), theirs()
        pairs = [(ours(), theirs()) for _ in range(rounds)]
        best, peer = min(x for x, _ in pairs), min(x for _, x in pairs)
        print(f"{name:12} sinter {megabytes / best:7.1f} MB/s   datatrove {megabytes / peer:6.3f} MB/s   {peer / best:6.1f} x", flush=True)


if __name__ == "__main__":
    main()
