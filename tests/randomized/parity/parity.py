#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the same programs in Python and in C++, and explains their differences.

parity.py RUNNER [--package FOLDER] [--only REGEX] [--update]

Runs the cases of cases.py with torch.distributed.tensor and with RUNNER
(dtensor_parity). Compares placements, local shapes, strides, values, gradients,
counts of collectives and classes of errors. Every difference must be listed in
differences.txt, with a reason from reasons.py. --update writes that file again.
With --package, also runs the Python programs on this library's Python package in
FOLDER, and compares with C++; package_differences.txt lists the differences.
Exits with 77 without a Python that has the package, and with another version of it
than differences.txt describes.
"""

import argparse
import importlib.metadata
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import cases
import reasons

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DIFFERENCES = HERE / "differences.txt"
PACKAGE_DIFFERENCES = HERE / "package_differences.txt"

# The version that both files describe. Other versions choose other layouts.
DESCRIBED = "2.13"

# Strides of gradients are not compared.
IS_GRADIENT = re.compile(r"^g[abwxg]?$|^h$|\.grad$")


def close(a, b):
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return (not isinstance(a, str) and not isinstance(b, str)
                and math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5))
    return a == b


def brief(value):
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def differences_of_records(label, python, ours):
    """Returns (facet, Python's, ours) of one shown value of one rank."""
    if not isinstance(python, dict) or not isinstance(ours, dict):
        if not close(python, ours):
            yield label, brief(python), brief(ours)
        return
    elsewhere = python.get("placements") != ours.get("placements")
    partial = any(text.startswith("P") for text in
                  ours.get("placements", []))
    for facet, value in python.items():
        # Other layouts have other shards, and the terms of a sum are arbitrary.
        if facet in ("local", "local_shape") and (
                elsewhere or partial and facet == "local"):
            continue
        if facet == "stride" and IS_GRADIENT.search(label):
            continue
        if not close(value, ours.get(facet)):
            yield f"{label}.{facet}", brief(value), brief(ours.get(facet))


def error_text(error):
    return error and f"{error['class']} at {error['at'].split()[-1]}"


def gathered(counts):
    """True if Python on the CPU gathers where one shard per rank would suffice."""
    return [[label, sum(found.get(kind, 0) for kind in
                        ("all_gather", "all_to_all")),
             {kind: count for kind, count in found.items()
              if kind not in ("all_gather", "all_to_all")}]
            for label, found in counts]


def counts_text(counts):
    return "; ".join(
        f"{label.split()[-1]} " + " ".join(
            f"{count} {kind}" for kind, count in sorted(found.items()))
        for label, found in counts) or "none"


def differences_of_ranks(python, ours):
    """Returns (facet, Python's, ours) of one rank."""
    first, second = error_text(python["error"]), error_text(ours["error"])
    if first != second:
        yield "error", first or "none", second or "none"
    for (label, value), (name, other) in zip(
            python["records"], ours["records"]):
        if label != name:
            yield "records", label, name
            return
        yield from differences_of_records(label, value, other)
    if first == second and gathered(python["counts"]) != gathered(
            ours["counts"]):
        yield "counts", counts_text(python["counts"]), counts_text(
            ours["counts"])


def differences_of(python, ours):
    """Returns (facet, Python's, ours) of all ranks, each once."""
    found = {}
    for first, second in zip(python, ours):
        for facet, *values in differences_of_ranks(first, second):
            found.setdefault(facet, values)
    return [(facet, *values) for facet, values in found.items()]


def by_reason(all_differences, reason_of=reasons.reason_of):
    """Returns reason -> its lines; None -> lines without a reason."""
    lines = {}
    for name, found in all_differences.items():
        for facet, python, ours in found:
            why = reason_of(name, facet, python, ours)
            lines.setdefault(why, []).append(
                f"{name} | {facet} | {python} | {ours}")
    return lines


def text_of(lines, ordered_reasons):
    parts = ["# case | what differs | in Python | here. Written by parity.py "
             "--update;\n# the reasons are those of reasons.py.\n"]
    for why in ordered_reasons:
        if why in lines:
            parts.append(f"\n## {why}\n" + "\n".join(lines[why]) + "\n")
    return "".join(parts)


def uncovered(made):
    """Returns rows of the API table that no case covers and no reason exempts.

    Cases are those of PyTorch 2.13, so rows of later versions need none."""
    known = {row for case in made for row in case["rows"]}
    rows = set()
    is_later = False
    for line in (ROOT / "docs/reference/api.md").read_text().splitlines():
        if line.startswith("## "):
            is_later = ", since " in line
        cells = [cell.strip(" |`") for cell in line.split(" | ")]
        if (line.startswith("| `") and not cells[1].startswith("not yet")
                and not is_later and ", since " not in cells[0]):
            rows.add(cells[0])
    excepted = {row for row in rows - known if reasons.is_excepted(row)}
    return sorted(rows - known - excepted), sorted(known - rows)


def results_of(runner, made):
    try:
        import python_side
    except ImportError as error:
        print(f"parity: skipped, {error}; tools/setup.sh installs it")
        sys.exit(77)
    python = python_side.run(made)
    with tempfile.TemporaryDirectory() as folder:
        given, results = f"{folder}/cases.json", f"{folder}/results.json"
        pathlib.Path(given).write_text(json.dumps(made))
        subprocess.run([runner, "--cases", given, "--results", results],
                       check=True)
        return python, json.loads(pathlib.Path(results).read_text())


def run_package(folder, made):
    """Returns the results of the Python programs on this library's package."""
    with tempfile.TemporaryDirectory() as work:
        given, results = f"{work}/cases.json", f"{work}/results.json"
        pathlib.Path(given).write_text(json.dumps(made))
        # A case with an error on some ranks leaves collectives in flight, which
        # our own backend would report.
        settings = {"PYTHONPATH": folder, "DTENSOR_BACKEND": "torch"}
        subprocess.run(
            [sys.executable, str(HERE / "package_side.py"), given, results],
            check=True, env={**os.environ, **settings})
        return json.loads(pathlib.Path(results).read_text())


def report(lines, only, listed=DIFFERENCES):
    """Prints the problems. Returns true if there are any."""
    wrong = False
    for line in lines.get(None, []):
        print(f"parity: no reason is listed for: {line}")
        wrong = True
    before = [line for line in listed.read_text().splitlines()
              if " | " in line and not line.startswith("#")
              and re.search(only, line.split(" | ")[0])]
    now = [line for why, some in lines.items() if why for line in some]
    for line in sorted(set(before) - set(now)):
        print(f"parity: no longer so: {line}")
        wrong = True
    for line in sorted(set(now) - set(before)):
        print(f"parity: new: {line}")
        wrong = True
    return wrong


def compare_package(options, made, ours):
    """Prints the problems of this library's Python package. Returns true if there
    are any."""
    package = run_package(options.package, made)
    lines = by_reason({
        case["name"]: differences_of(package[case["name"]], ours[case["name"]])
        for case in made}, reasons.package_reason_of)
    if options.update and not options.only:
        PACKAGE_DIFFERENCES.write_text(
            text_of(lines, [why for why, _ in reasons.PACKAGE_REASONS]))
    differing = sum(map(len, lines.values()))
    print(f"parity: the package has {differing} differences from C++")
    return report(lines, options.only, PACKAGE_DIFFERENCES)


def is_described_version():
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        print("parity: this Python has no torch")
        return False
    if version.startswith(DESCRIBED + "."):
        return True
    print(f"parity: differences.txt describes torch {DESCRIBED}, not {version}")
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runner")
    parser.add_argument("--package", help="the folder of the Python package")
    parser.add_argument("--only", default="")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    if not is_described_version():
        return 77
    everything = cases.cases()
    made = [case for case in everything
            if re.search(options.only, case["name"])]
    python, ours = results_of(options.runner, made)
    lines = by_reason({
        case["name"]: differences_of(python[case["name"]], ours[case["name"]])
        for case in made})
    if options.update and not options.only:
        DIFFERENCES.write_text(text_of(lines, reasons.all_reasons()))
    wrong = report(lines, options.only)
    if options.package:
        wrong |= compare_package(options, made, ours)
    missing, unknown = uncovered(everything)
    for row in missing:
        print(f"parity: no case is about {row}")
    for row in unknown:
        print(f"parity: no row of the API table is {row}")
    differing = sum(map(len, lines.values()))
    print(f"parity: {len(made)} cases, {differing} differences with a reason")
    return 1 if wrong or missing or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
