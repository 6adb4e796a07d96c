# SPDX-License-Identifier: BSD-3-Clause
"""Tests that the benchmark of Python calls runs, and that its bars have figures."""

import fnmatch
import json
import runpy
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_bar_has_a_figure(monkeypatch, capsys):
    program = BENCHMARKS / "anchors/python.py"
    monkeypatch.syspath_prepend(str(program.parent))
    monkeypatch.setattr(sys, "argv", [str(program), "--smoke"])
    runpy.run_path(str(program), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    names = [json.loads(line)["benchmark"] for line in lines]
    bars = json.loads((BENCHMARKS / "bars.json").read_text())
    patterns = [
        pattern
        for bar in bars
        for pattern in bar["benchmarks"]
        if pattern.startswith("python/")
    ]
    assert patterns
    for pattern in patterns:
        assert fnmatch.filter(names, pattern), pattern
