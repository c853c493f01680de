#!/usr/bin/env python3
"""translate.py IN OUT: a CUDA source as C++ for the emulator (emulator.h).

Launches become calls, shared memory static, and every PTX instruction one of INSTRUCTIONS; another is an error."""
import re
import sys

# Mnemonic (its beginning) -> statement; {0}, {1}, ... are the operands.
INSTRUCTIONS = [
    ("griddepcontrol.", ";"),
    ("cp.async.bulk.prefetch.L2.global", ";"),
    ("cp.async.commit_group", ";"),
    ("cp.async.wait_group", ";"),
    ("cp.async.cg.shared.global", "emulator::copy_16(emulator::shared_pointer({0}), {1}, {2});"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "emulator::multiply<__nv_bfloat16>({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9});"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "emulator::multiply<__half>({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9});"),
    ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "emulator::load_matrices({0}, {1}, {2}, {3}, {4}, false);"),
    ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "emulator::load_matrices({0}, {1}, {2}, {3}, {4}, true);"),
    ("ld.global.nc.L1::no_allocate.L2::128B.v4.u32", "emulator::load_16({0}, {1}, {2}, {3}, {4});"),
    ("tanh.approx.f32", "{0} = std::tanh({1});"),
    ("ex2.approx.ftz.f32", "{0} = exp2f({1});"),
]


def end_of(text, at, opening="([{", closing=")]}"):
    """The place behind the bracket that closes the one at `at`; strings are passed over."""
    depth = 0
    while True:
        c = text[at]
        if c == '"':
            at = re.compile(r'"(?:\\.|[^"\\])*"').match(text, at).end()
            continue
        depth += (c in opening) - (c in closing)
        at += 1
        if depth == 0:
            return at


def split_arguments(text):
    parts, depth, begin = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[begin:i].strip())
            begin = i + 1
    return parts + [text[begin:].strip()]


def translate_instructions(text, name):
    out, at = "", 0
    for match in re.finditer(r"\basm\s*(?:volatile\s*)?\(", text):
        end = end_of(text, match.end() - 1)
        body = text[match.end():end - 1]
        mnemonic = re.match(r'\s*"([^ ;"]+)', body).group(1)
        operands = []
        for operand in re.finditer(r'"[=+]?[a-z]"\s*\(', body):
            close = end_of(body, operand.end() - 1)
            operands.append(body[operand.end():close - 1].strip())
        found = [s for begin, s in INSTRUCTIONS if mnemonic.startswith(begin)]
        if not found:
            sys.exit(f"{name}: the emulator does not know the instruction {mnemonic}: add it to translate.py")
        out += text[at:match.start()] + found[0].format(*operands)
        at = text.index(";", end) + 1
    return out + text[at:]


def translate_launches(text):
    out, at = "", 0
    for match in re.finditer(r"([A-Za-z_]\w*(?:<[^<>;]*(?:<[^<>;]*>)?[^<>;]*>)?)\s*<<<", text):
        if match.start() < at:
            continue
        end = match.end()
        depth = 0
        while depth > 0 or not text.startswith(">>>", end):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
        how = split_arguments(text[match.end():end]) + ["0", "0"]
        call = text.index("(", end)
        close = end_of(text, call)
        out += text[at:match.start()]
        out += f"emulator::launch(dim3({how[0]}), dim3({how[1]}), {how[2]}, [=] {{ {match.group(1)}{text[call:close]}; }})"
        at = close
    return out + text[at:]


def main():
    source, target = sys.argv[1:]
    text = open(source, encoding="utf-8").read()
    text = translate_instructions(text, source)
    text = translate_launches(text)
    text = text.replace("cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...)",
                        "emulator::launch_as(config, [=] { kernel(static_cast<Params>(args)...); })")
    text = re.sub(r"extern __shared__ (?:__align__\(\w+\) )?([\w ]+?) (\w+)\[\];",
                  r"\1* \2 = reinterpret_cast<\1*>(emulator::dynamic_shared);", text)
    text = re.sub(r"__(?:shared|constant)__", "static", text)
    text = text.replace("#include <cuda_runtime.h>", '#include "kernels/cuda/emulator/emulator.h"')
    with open(target, "w", encoding="utf-8") as file:
        file.write(text)


main()
