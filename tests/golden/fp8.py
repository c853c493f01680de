#!/usr/bin/env python3
"""PyTorch's casts to fp8, written down: one line a number, its bits as f32, as float8_e4m3fn and as float8_e5m2, in hex.

usage: fp8.py > fp8_casts.txt

Every value of both formats, the points halfway between neighbours and the f32 next to them, and random numbers over all
exponents. Larger numbers than a format holds are left out ("-"): PyTorch makes NaN or infinity of them, we saturate.
"""
import struct
import torch

def f32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]

numbers = []
for dtype, largest in ((torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)):
    grid = torch.arange(128, dtype=torch.uint8).view(dtype).float()
    grid = sorted(v for v in grid.tolist() if v == v and v <= largest)
    numbers += grid
    for low, high in zip(grid, grid[1:]):
        middle = torch.tensor((low + high) / 2, dtype=torch.float32)
        numbers += [middle.item(), torch.nextafter(middle, torch.tensor(0.0)).item(),
                    torch.nextafter(middle, torch.tensor(1e9)).item()]
generator = torch.Generator().manual_seed(8)
mantissas = 1 + torch.rand(200, generator=generator)
exponents = torch.randint(-24, 16, (200,), generator=generator)
numbers += torch.ldexp(mantissas, exponents).tolist() + [0.0, 1e-30, 1e-45]
numbers = sorted(set(numbers))
numbers = [-x for x in reversed(numbers[::3])] + numbers
for x in numbers:
    t = torch.tensor(x, dtype=torch.float32)
    row = ["%08x" % f32_bits(x)]
    for dtype, largest in ((torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)):
        row.append("%02x" % t.to(dtype).view(torch.uint8).item() if abs(x) <= largest else "-")
    print(*row)
