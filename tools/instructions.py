#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Counts the instructions of a warm call of each operator, on DTensors and on
plain tensors: runs build/bench/benchmarks/instructions under callgrind.

Unlike times, the counts are repeatable. callgrind runs the code paths without
AVX-512, so the kernels differ from the timed ones. The overhead of DTensors
does not differ.

Prints a table, and appends every figure to build/bench/instructions.jsonl.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import bench

PROGRAM = bench.BUILD / "benchmarks/instructions"
# Valgrind does not support AVX-512.
ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
}
TRIGGER = re.compile(r"^desc: Trigger: Client Request: (\S+)", re.M)
TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.M)


def run(only: str, preload: str) -> tuple[dict[str, int], dict[str, int]]:
    """Returns benchmark -> calls, and section of callgrind's output ->
    instructions."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            f"--callgrind-out-file={folder}/out",
            str(PROGRAM),
            "--only",
            only,
        ]
        done = subprocess.run(
            command,
            env=os.environ | ENVIRONMENT | ({"LD_PRELOAD": preload} if preload else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            sys.exit(f"instructions: valgrind exited with {done.returncode}\n{done.stderr}")
        counts = {}
        for path in Path(folder).iterdir():
            text = path.read_text()
            if trigger := TRIGGER.search(text):
                counts[trigger[1]] = int(TOTALS.search(text)[1])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["benchmark"]: round(line["calls"]) for line in lines}, counts


def figures(calls: dict[str, int], counts: dict[str, int]) -> list[dict]:
    result = []
    for benchmark, number in calls.items():
        figure = {"benchmark": benchmark}
        figure["instructions"] = counts[benchmark] // number
        if (plain := counts.get(benchmark + "/plain")) is not None:
            figure["plain"] = plain // number
            figure["extra"] = figure["instructions"] - figure["plain"]
        result.append(figure)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only results whose name starts with this")
    parser.add_argument(
        "--preload",
        default="",
        metavar="LIBRARY",
        help="allocator to use instead of the system's, e.g. libjemalloc.so.2",
    )
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("instructions: valgrind is missing. Install it.")
    if not PROGRAM.exists():
        sys.exit("instructions: the program is not built. Install valgrind's headers, then build.")
    lines = figures(*run(options.only, options.preload))
    facts = bench.facts_of_this_run()
    with (bench.BUILD / "instructions.jsonl").open("a") as log:
        for line in lines:
            log.write(json.dumps(line | facts) + "\n")
    keys = ("benchmark", "instructions", "plain", "extra")
    bench.print_table(keys, [tuple(str(line.get(k, "-")) for k in keys) for line in lines])


if __name__ == "__main__":
    main()
