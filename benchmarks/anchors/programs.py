# SPDX-License-Identifier: BSD-3-Clause
"""Counterpart of programs.cpp in Python: the exported module, called as in
Python. With --export FILE, writes the program instead."""

import sys

import harness
import torch
from torch import nn

WIDTH, LAYERS = 16, 40


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        h = torch.relu(self.up(self.norm(x)))
        return x + self.down(h * torch.sigmoid(h))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def main():
    program = torch.export.export(Model(), (torch.randn(4, WIDTH),))
    if sys.argv[1:2] == ["--export"]:
        torch.export.save(program, sys.argv[2])
        return
    options = harness.parse(__doc__)
    if not "program/plain".startswith(options.only):
        return
    operators = sum(n.op == "call_function" for n in program.graph.nodes)
    call, x = program.module(), torch.randn(4, WIDTH)
    with torch.no_grad():
        us = [harness.us_per_call(lambda: call(x), 1) / operators
              for _ in range(1 if options.smoke else 220)]
    us = us[20:] or us
    figure = sorted(us)[len(us) // 2]
    harness.report("program/plain", us=figure, spread=harness.spread(us, figure))


if __name__ == "__main__":
    main()
