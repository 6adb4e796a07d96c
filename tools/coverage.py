#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Prints the lines of the library that the tests of a build reached, by folder.

Reads the profiles that the tests of the preset "coverage" write. Lists also the
files with the most lines that no test reached; `llvm-cov show` prints the lines.

tools/coverage.py --build build/coverage
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Libraries that are compiled with DTENSOR_LIBRARY_FLAGS.
INSTRUMENTED = ("_core", "", "_legacy_tp", "_torchscript")


def merge_profiles(build):
    """Returns the merged profile. A process that was killed may leave an
    incomplete file, which is skipped."""
    merged = build / "coverage.profdata"
    profiles = build / "profiles.txt"
    profiles.write_text("".join(f"{p}\n" for p in build.glob("profiles/*.profraw")))
    subprocess.run(
        ["llvm-profdata", "merge", "--sparse", "--failure-mode=all",
         "--input-files", profiles, "--output", merged],
        check=True)
    return merged


def lines_of_files(build, profile):
    """Returns {path: (number of lines with code, number of those that ran)}."""
    libraries = [build / f"libdtensor{name}.so" for name in INSTRUMENTED]
    libraries = [library for library in libraries if library.exists()]
    objects = [part for library in libraries[1:] for part in ("--object", library)]
    exported = subprocess.run(
        ["llvm-cov", "export", "--summary-only", "--instr-profile", profile,
         libraries[0], *objects],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for file in json.loads(exported)["data"][0]["files"]:
        path = pathlib.Path(file["filename"])
        if path.is_relative_to(ROOT / "dtensor"):
            lines = file["summary"]["lines"]
            found[path.relative_to(ROOT / "dtensor")] = (lines["count"], lines["covered"])
    return found


def print_rows(rows):
    print(f"{'':44}{'lines':>8}{'not run':>9}{'run':>8}")
    for name, (count, covered) in rows:
        print(f"{name:44}{count:8}{count - covered:9}{100 * covered / max(count, 1):7.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--files", type=int, default=20, help="number of files to list")
    options = parser.parse_args()
    build = options.build.resolve()
    files = lines_of_files(build, merge_profiles(build))
    folders = collections.defaultdict(lambda: (0, 0))
    for path, (count, covered) in files.items():
        for name in (path.parts[0] if len(path.parts) > 1 else "(root)", "all"):
            before = folders[name]
            folders[name] = (before[0] + count, before[1] + covered)
    print_rows(sorted(folders.items()))
    print()
    most = sorted(files.items(), key=lambda f: f[1][1] - f[1][0])[:options.files]
    print_rows((str(path), lines) for path, lines in most)
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main())
