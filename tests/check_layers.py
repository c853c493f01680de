#!/usr/bin/env python3
"""Proves the layer rule: a folder of src/ includes only folders on a lower line of ARCHITECTURE.md's table, never one on
its own line, and headers of CUDA, NCCL, MPI and CLI11 appear only where they are confined.

usage: check_layers.py REPOSITORY
"""
import os
import re
import sys

CONFINED = [
    (re.compile(r"cuda|cublas|cudnn|nvtx|cub/|cutlass|cute/|mma\.h"), ("core/cuda/", "kernels/cuda/", "comm/nccl/"), "CUDA"),
    (re.compile(r"nccl"), ("comm/nccl",), "NCCL"),
    (re.compile(r"^mpi\.h$"), ("comm/mpi/",), "MPI"),
    (re.compile(r"^CLI/"), ("cli/command.cc",), "CLI11"),
    (re.compile(r"^boost/"), ("server/http_",), "Boost"),
]
HEAVY = re.compile(r"^(toml\+\+/|boost/|nlohmann/json\.hpp)")
INTERNAL = ("server/http_session.h",)  # shared by the two files that are built on Boost, and by no other


def read_layers(path):
    """The rows `| 4 | ops | ...` of the table headed `| line | folders |`."""
    layers = {}
    for line in open(path):
        m = re.match(r"\|\s*(\d+)\s*\|\s*([a-z_ ,]+?)\s*\|", line)
        if m:
            for folder in re.split(r"[ ,]+", m.group(2).strip()):
                layers[folder] = int(m.group(1))
    return layers


def sources(root):
    for folder, _, files in os.walk(root):
        for name in files:
            if name.endswith((".h", ".cc", ".cu", ".cuh")):
                yield os.path.join(folder, name)


def problems(repository):
    root = os.path.join(repository, "src")
    layers = read_layers(os.path.join(repository, "ARCHITECTURE.md"))
    if not layers:
        yield "ARCHITECTURE.md: no layer table found"
    for path in sources(root):
        relative = os.path.relpath(path, root)
        folder = relative.split(os.sep)[0]
        if os.sep not in relative:
            continue  # main.cc stands above all
        if folder not in layers:
            yield f"{relative}: folder {folder} is not in ARCHITECTURE.md's layer table"
            continue
        for number, line in enumerate(open(path, errors="replace"), 1):
            m = re.match(r"\s*#\s*include\s*([<\"])([^>\"]+)[>\"]", line)
            if not m:
                continue
            kind, name = m.groups()
            if kind == '"' and not name.startswith("hwy/"):  # Highway's own form
                other = name.split("/")[0]
                if other not in layers or not os.path.exists(os.path.join(root, name)):
                    yield f"{relative}:{number}: \"{name}\" is not written from src/"
                elif other != folder and layers[other] >= layers[folder]:
                    yield f"{relative}:{number}: {folder} (line {layers[folder]}) includes {other} (line {layers[other]})"
            else:
                for pattern, allowed, what in CONFINED:
                    if pattern.search(name) and not relative.startswith(allowed):
                        yield f"{relative}:{number}: a header of {what} outside {', '.join(allowed)}"
                if relative.endswith(".h") and relative not in INTERNAL and HEAVY.match(name):
                    yield f"{relative}:{number}: heavy header <{name}> in a header"


if __name__ == "__main__":
    found = list(problems(sys.argv[1]))
    print("\n".join(found) if found else "layers hold")
    sys.exit(1 if found else 0)
