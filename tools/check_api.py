#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks docs/reference/api.md: every public name and option of Python's modules,
its counterpart in C++, and a test of it.

The names are those of the torch package of the Python that runs this tool, 2.13 or
newer. A section "MODULE, since 2.14" has the names that this version added. Fails if
a Python name has no row, a row has no Python name, or a test does not exist.
With --names: prints only the names.
"""
import argparse
import importlib
import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/api.md"
MODULES = (
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.distributed.tensor.experimental",
    "torch.distributed.tensor.debug",
    "torch.distributed.device_mesh",
)
# C++ constructors, which have no signature in Python.
WITHOUT_SIGNATURE = {"Shard": ["dim"], "Partial": ["reduce_op"]}
NOT_YET = "not yet"
VERSIONS = ("2.13", "2.14", "2.15")  # versions that the rows are for
SKIPPED = 77  # exit code


# --- names in Python ---------------------------------------------------------


def options_of(thing) -> list[str]:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [p.name for p in parameters if p.kind not in kinds]
    return [n for n in names if n != "self" and not n.startswith("_")]


def names_of_class(name: str, thing) -> list[str]:
    found = [name]
    options = WITHOUT_SIGNATURE.get(name) or options_of(thing)
    found += [f"{name}({option})" for option in options]
    for member, value in vars(thing).items():
        if member.startswith("_"):
            continue
        function = getattr(value, "__func__", value)
        found.append(f"{name}.{member}")
        if callable(function):
            found += [f"{name}.{member}({option})" for option in options_of(function)]
    return found


def names_of(module_name: str) -> list[str]:
    module = importlib.import_module(module_name)
    found = []
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            found += names_of_class(name, thing)
        else:
            found += [name, *(f"{name}({option})" for option in options_of(thing))]
    return found


# --- names in C++ ------------------------------------------------------------


def read_rows() -> dict[str, dict[str, tuple[str, str]]]:
    """Returns section -> name -> (C++, test)."""
    sections: dict[str, dict[str, tuple[str, str]]] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            rows = sections.setdefault(line.removeprefix("## "), {})
        elif line.startswith("| `"):
            name, cpp, test = (cell.strip(" |`") for cell in line.split(" | "))
            rows[name] = (cpp, test)
    return sections


def tests_that_exist() -> set[str]:
    found = set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        for suite, name in re.findall(r"\bTEST\w*\(\s*(\w+),\s*(\w+)", path.read_text()):
            found.add(f"{suite}.{name}")
    return found


def rows_of(sections: dict, module: str, version: str) -> list[str]:
    """Returns the names of a module that have a row, up to that version of torch."""
    rows = list(sections.get(module, {}))
    for since in VERSIONS[1 : VERSIONS.index(version) + 1]:
        rows += sections.get(f"{module}, since {since}", {})
    return rows


def problems_of(sections: dict, version: str) -> list[str]:
    problems = []
    for module in MODULES:
        names = names_of(module)
        rows = rows_of(sections, module, version)
        problems += [f"{module}: missing row for {n}" for n in names if n not in rows]
        problems += [f"{module}: {n} does not exist in Python" for n in rows if n not in names]
    tests = tests_that_exist()
    for section, rows in sections.items():
        for name, (cpp, test) in rows.items():
            if not cpp.startswith(NOT_YET) and test not in tests:
                problems.append(f"{section}: {name}: test {test} does not exist")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true")
    options = parser.parse_args()
    if options.names:
        for module in MODULES:
            print(module, *names_of(module), sep="\n  ")
        return
    import torch

    version = ".".join(torch.__version__.split(".")[:2])
    if version not in VERSIONS:
        print(f"the rows are for torch {', '.join(VERSIONS)}, not for {torch.__version__}")
        sys.exit(SKIPPED)
    problems = problems_of(read_rows(), version)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
