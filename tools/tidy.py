#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""clang-tidy over the sources that a build folder compiles.

Most of what clang-tidy does for one source is reading LibTorch's headers, so
sources with the same flags are read several at a time, as one that includes
them. Where they cannot stand in one (a name that two of them have), half of
them are.

    tools/tidy.py --build build/asan [FOLDER ...]
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["dtensor", "launcher"]


def commands(build, folders):
    """(compiler and flags, source) of each source of `folders` in `build`."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["file"])
        if any(source.is_relative_to(ROOT / folder) for folder in folders):
            words = shlex.split(entry["command"])
            output = words.index("-o")
            flags = words[:output] + words[output + 2 :]
            flags.remove("-c")
            flags.remove(entry["file"])
            # One source's name may hide that of another.
            yield (*flags, "-Wno-shadow"), source


def batches(build, folders, size):
    """Sources with the same flags, neighbours together."""
    found = sorted(set(commands(build, folders)))
    for flags, group in groupby(found, key=lambda pair: pair[0]):
        sources = [source for _, source in group]
        for first in range(0, len(sources), size):
            yield flags, sources[first : first + size]


def one_source(sources, folder):
    one = tempfile.NamedTemporaryFile("w", suffix=".cpp", dir=folder)
    # NOLINT: a source that includes sources is worth a finding otherwise.
    one.writelines(f'#include "{source}" // NOLINT\n' for source in sources)
    one.flush()
    return one


def run(*command):
    """(whether it succeeded, its output)"""
    ran = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return ran.returncode == 0, ran.stdout


def read(flags, sources, folder):
    """Whether clang-tidy finds nothing in the sources; prints what it finds."""
    with one_source(sources, folder) as one:
        if len(sources) == 1 or run(*flags, "-fsyntax-only", one.name)[0]:
            # What is included counts as a header.
            own = rf"--header-filter={ROOT}/({'|'.join(FOLDERS)})/.*"
            well, said = run("clang-tidy", "--quiet", own, one.name, "--", *flags[1:])
            if not well:
                print(said, end="", flush=True)
            return well
    half = len(sources) // 2
    return all([read(flags, part, folder) for part in (sources[:half], sources[half:])])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--together", type=int, default=12, metavar="SOURCES")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    options = parser.parse_args()

    work = list(batches(options.build, options.folders, options.together))
    with tempfile.TemporaryDirectory(dir=options.build) as folder:
        with ThreadPoolExecutor(options.jobs) as pool:
            results = list(pool.map(lambda batch: read(*batch, folder), work))
    print(f"{sum(len(sources) for _, sources in work)} sources read")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
