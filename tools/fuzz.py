#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs fuzz targets for a limited time each, and prints one line per target.

    tools/fuzz.py [--build build/asan] [--seconds 60] [--jobs 2] [target...]

A target starts with the seeds in tests/fuzz/seeds/<target> and with its earlier
finds in <build>/fuzz/<target>/corpus. A failing input is stored in
<build>/fuzz/<target>; run the program with that file to reproduce the failure.
Exits with 1 if a target has failed.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
# An input of up to 64 KiB must not take 5 seconds, or much memory.
LIMITS = ["-timeout=5", "-rss_limit_mb=1500", "-malloc_limit_mb=256",
          "-max_len=65536"]


def run_target(program, seconds):
    name = program.name.removesuffix("_fuzz")
    folder = program.parents[2] / "fuzz" / name
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "tests/fuzz/seeds" / name
    words = ROOT / "tests/fuzz" / f"{name}.dict"
    command = [program, *LIMITS, f"-max_total_time={seconds}",
               f"-artifact_prefix={folder}/", "-print_final_stats=1", corpus]
    command += [seeds] if seeds.is_dir() else []
    command += [f"-dict={words}"] if words.exists() else []
    environment = dict(
        os.environ, ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1",
        UBSAN_OPTIONS="print_stacktrace=1", OMP_NUM_THREADS="1")
    log = folder / "log.txt"
    with open(log, "w") as out:
        status = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment,
            check=False).returncode
    return name, status, log


def last_number(pattern, text):
    found = re.findall(pattern, text)
    return found[-1] if found else "0"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=str(ROOT / "build/asan"))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("targets", nargs="*")
    args = parser.parse_args()
    programs = sorted(
        program for program in pathlib.Path(args.build).glob("tests/fuzz/*_fuzz")
        if not args.targets or program.name.removesuffix("_fuzz") in args.targets)
    if not programs:
        sys.exit(f"fuzz: no targets in {args.build}. Build dtensor_fuzz first")
    failed = 0
    print(f"{'target':24}{'executions':>12}{'coverage':>10}{'inputs':>8}  result")
    with ThreadPoolExecutor(args.jobs) as pool:
        for name, status, log in pool.map(
                lambda program: run_target(program, args.seconds), programs):
            text = log.read_text(errors="replace")
            failed += status != 0
            print(f"{name:24}"
                  f"{last_number(r'number_of_executed_units: +([0-9]+)', text):>12}"
                  f"{last_number(r'cov: ([0-9]+)', text):>10}"
                  f"{last_number(r'corp: ([0-9]+)', text):>8}"
                  f"  {'passed' if status == 0 else f'FAILED, see {log}'}",
                  flush=True)
            if status != 0:
                print("\n".join(text.splitlines()[-60:]))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
