#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs clang-tidy on the library and the launcher, as compiled in a build
folder.

tools/tidy.py --build build/asan
"""

import argparse
import json
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent


def sources(build):
    """Returns the sources. With CMAKE_UNITY_BUILD, these are files in `build`
    that include many sources each, because most of the time is spent on
    LibTorch's headers, once per file."""
    ours = [root / name for root in (ROOT, build) for name in ("dtensor", "launcher")]
    ours.append(build / "CMakeFiles")
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["file"])
        is_ours = any(map(source.is_relative_to, ours))
        if is_ours and not source.name.startswith("cmake_pch"):
            yield source


def is_clean(build, source):
    """Runs clang-tidy and prints its findings."""
    ran = subprocess.run(
        ["clang-tidy", "--quiet", "-p", build, source],
        stdout=subprocess.PIPE,
        # Number of suppressed warnings.
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if ran.returncode:
        print(ran.stdout, end="", flush=True)
    return ran.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    options.build = options.build.resolve()
    found = sorted(set(sources(options.build)))
    with ThreadPoolExecutor(options.jobs) as pool:
        clean = list(pool.map(lambda source: is_clean(options.build, source), found))
    print(f"{len(found)} sources checked, {clean.count(False)} with findings")
    return 0 if found and all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
