#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Builds dtensor with every supported compiler on this machine.

With each g++ (12 to 14) and clang++ (14 to 19), builds the library and
dtensor-run with warnings as errors, and builds and runs the tests of one layer.
With --syntax-only, checks the sources of the library and compiles nothing, which
takes a few minutes for each compiler. Each compiler has a folder under
build/compilers, which is reused.

Prints one table. The exit status is 1 if a compiler fails or none is found.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from matrix import Failure, duration

ROOT = Path(__file__).resolve().parent.parent
BUILDS = ROOT / "build/compilers"
SUPPORTED = {"g++": range(12, 15), "clang++": range(14, 20)}
NAMES = [f"{name}-{major}" for name, majors in SUPPORTED.items() for major in majors]
SUITE = "layout"  # the suite that compiles fastest


def note(text: str) -> None:
    print(f"compilers: {text}", file=sys.stderr, flush=True)


class Compiler:
    """One compiler: its command, its folder, and its results."""

    def __init__(self, name: str):
        self.name = name
        self.folder = BUILDS / name
        self.version = "-"
        self.result = "not installed"
        self.tests = "-"
        self.seconds = 0.0

    def is_installed(self) -> bool:
        return shutil.which(self.name) is not None

    def run(self, log: str, command: list) -> int:
        """Runs a command and returns its exit status. The command and its
        output go to a log."""
        with (self.folder / f"{log}.log").open("a") as out:
            print("$", *command, file=out, flush=True)
            return subprocess.run(command, cwd=ROOT, stdout=out, stderr=out).returncode


def read_version(compiler: Compiler) -> str:
    command = [compiler.name, "-dumpfullversion", "-dumpversion"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def configure(compiler: Compiler, *options: str) -> None:
    configured = compiler.run("build", [
        *("cmake", "--preset", "dev", "--fresh", "-B", compiler.folder / "build"),
        f"-DCMAKE_CXX_COMPILER={compiler.name}",
        "-DDTENSOR_CHECKS=OFF",
        "-DDTENSOR_EXAMPLES=OFF",
        "-DDTENSOR_TEST_EACH=OFF",
        *options,
    ])
    if configured != 0:
        raise Failure("NO, CMake fails")


# --- syntax only -------------------------------------------------------------


def syntax_commands(build: Path) -> list[list[str]]:
    """Returns a command for each source of the library and of its modules, in
    the order of the build."""
    found = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if not re.search(r"dtensor_\w+\.dir", entry["command"]):
            continue
        words = shlex.split(entry["command"])
        output = words.index("-o")
        found.append([*words[:output], "-fsyntax-only", *words[output + 2:]])
    return found


def check_syntax(compiler: Compiler, jobs: int) -> None:
    configure(compiler, "-DDTENSOR_TESTS=OFF", "-DCCACHE=OFF",
              "-DCMAKE_UNITY_BUILD_BATCH_SIZE=48",
              "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON")
    commands = syntax_commands(compiler.folder / "build")
    with ThreadPoolExecutor(jobs) as pool:
        failed = sum(map(bool, pool.map(lambda c: compiler.run("build", c), commands)))
    if failed or not commands:
        raise Failure(f"NO, {failed} of {len(commands)} units are refused")
    compiler.result = f"{len(commands)} units, syntax only"


# --- build and test ----------------------------------------------------------


def build(compiler: Compiler, jobs: int) -> None:
    configure(compiler)
    targets = ("dtensor_dtensor", "dtensor_testing", "dtensor_legacy_tp",
               "dtensor_torchscript", "dtensor_run", f"dtensor_{SUITE}_tests")
    command = ["cmake", "--build", compiler.folder / "build", "--parallel", str(jobs)]
    if compiler.run("build", [*command, "--target", *targets]) != 0:
        raise Failure("NO, compilation fails")
    compiler.result = "yes"


def test(compiler: Compiler) -> None:
    failed = compiler.run("test", [
        *("ctest", "--test-dir", compiler.folder / "build", "--no-tests=error"),
        *("--label-regex", f"^{SUITE}$", "--output-on-failure", "--verbose"),
    ])
    log = (compiler.folder / "test.log").read_text()
    passed = sum(map(int, re.findall(r"\[  PASSED  \] (\d+) test", log)))
    compiler.tests = f"{passed} passed" if not failed else "FAILED"


def try_compiler(compiler: Compiler, options) -> None:
    begin = time.monotonic()
    compiler.folder.mkdir(parents=True, exist_ok=True)
    for log in compiler.folder.glob("*.log"):
        log.unlink()
    compiler.version = read_version(compiler)
    note(f"{compiler.name} {compiler.version}")
    try:
        if options.syntax_only:
            check_syntax(compiler, options.jobs)
        else:
            build(compiler, options.jobs)
            test(compiler)
    except Failure as failure:
        compiler.result = str(failure)
    compiler.seconds = time.monotonic() - begin


# --- table -------------------------------------------------------------------

HEAD = ("compiler", "version", "library", f"tests of {SUITE}", "time")


def print_table(compilers: list[Compiler]) -> None:
    table = [(c.name, c.version, c.result, c.tests, duration(c.seconds)) for c in compilers]
    widths = [max(len(line[i]) for line in (HEAD, *table)) for i in range(len(HEAD))]
    for line in (HEAD, tuple("-" * width for width in widths), *table):
        print("| " + " | ".join(map(str.ljust, line, widths)) + " |")
    print(f"logs: {BUILDS.relative_to(ROOT)}/<compiler>/{{build,test}}.log")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--compilers", nargs="*", metavar="C", help=f"commands, such as {' '.join(NAMES)}"
    )
    parser.add_argument("--syntax-only", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    compilers = [Compiler(name) for name in options.compilers or NAMES]
    tried = [compiler for compiler in compilers if compiler.is_installed()]
    for compiler in tried:
        try_compiler(compiler, options)
    print_table(compilers)
    good = all(not c.result.startswith("NO") and c.tests != "FAILED" for c in tried)
    sys.exit(0 if tried and good else 1)


if __name__ == "__main__":
    main()
