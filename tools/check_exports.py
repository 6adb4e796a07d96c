#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares the symbols that shared libraries export with tests/package/exports.txt.

Lists classes and functions of the namespace dtensor, without their members and
overloads. Fails if one of the given libraries exports another name, or does not
export a listed one. With DTENSOR_UPDATE_GOLDEN=1 in the environment: writes the list.

With --uses, for libraries that export everything because of
DTENSOR_EXPORT_INTERNALS: fails if one uses a name that is not listed, because
the libraries of a release would not link. Also fails if one defines a name that
is marked as exported but not listed.
"""
import argparse
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/package/exports.txt"
# Constructors, vtables and the like stand for their class.
PREFIX = re.compile(
    r"^(vtable|VTT|typeinfo|typeinfo name|guard variable|TLS init function"
    r"|TLS wrapper function) for |^(non-virtual|virtual) thunk to ")

# A declaration that is marked, up to its parameters or members.
MARKED = re.compile(
    r"^(?:namespace (?P<opened>\S+) \{$|(?P<closed>\} // namespace)"
    r"|[^#/\n]*\bDTENSOR_(?:INTERNAL_)?API\b(?P<declared>[^;{(]*))", re.M)
FORWARD = re.compile(r"^namespace \S+ \{\n(?:(?:class|struct) .*;\n)+\}.*\n", re.M)
NOT_NAMES = re.compile(
    r"__attribute__\(\(.*?\)\)|\[\[.*?\]\]|\bfinal\b|(?<!:):(?!:).*", re.S)


def name_of(symbol: str) -> str:
    """Returns `comm::Group` for `vtable for dtensor::comm::Group`."""
    symbol = PREFIX.sub("", symbol)
    symbol = re.sub(r"\[abi:\w+\]", "", symbol)
    if not symbol.startswith("dtensor::"):
        return symbol
    name = []
    for part in re.split(r"[(<]", symbol)[0].split("::")[1:]:
        name.append(part)
        if part[:1].isupper():  # a class
            break
    return "::".join(name)


def sections() -> dict[str, list[str]]:
    """The listed names of each library."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in LIST.read_text().splitlines():
        if line.startswith("  "):
            names.append(line.strip())
        else:
            names = found.setdefault(line, [])
    return found


def write(names: dict[str, list[str]]) -> None:
    LIST.write_text("".join(
        f"{title}\n" + "".join(f"  {name}\n" for name in of_title)
        for title, of_title in names.items()))


def symbols(library: Path, kind: str) -> list[str]:
    return subprocess.run(
        ["nm", "--dynamic", f"--{kind}-only", "--demangle", library],
        check=True, capture_output=True, text=True).stdout.splitlines()


def exported(library: Path) -> list[str]:
    """Names of strong symbols. Weak ones are inline functions and templates."""
    strong = (line.split(" ", 2) for line in symbols(library, "defined"))
    names = {name_of(s[2]) for s in strong if s[1] in "TDBRG"}
    return sorted(names - {"__bss_start", "_edata", "_end"})  # the linker's own


def used(library: Path) -> set[str]:
    """Names in the namespace dtensor that the library does not define."""
    kinds = (line.split(maxsplit=1) for line in symbols(library, "undefined"))
    strong = (PREFIX.sub("", symbol) for kind, symbol in kinds if kind == "U")
    return {name_of(symbol) for symbol in strong if symbol.startswith("dtensor::")}


def marked() -> set[str]:
    """Names that headers mark with DTENSOR_API or DTENSOR_INTERNAL_API."""
    names = set()
    for header in (ROOT / "dtensor").rglob("*.h"):
        scopes: list[str] = []
        for match in MARKED.finditer(FORWARD.sub("", header.read_text())):
            if match["opened"]:
                scopes.append(match["opened"])
            elif match["closed"]:
                scopes.pop()
            else:
                # The words exclude attributes and base classes.
                words = re.findall(r"operator\W*|\w+", NOT_NAMES.sub("", match["declared"]))
                scope = "::".join(scopes).removeprefix("dtensor").strip(":")
                names.add("::".join(filter(None, [scope, *words[-1:]])))
    return names


def check_uses(libraries: list[Path]) -> int:
    listed = {name for names in sections().values() for name in names}
    not_listed = [f"{library.name} uses {name}" for library in libraries
                  for name in sorted(used(library) - listed)]
    not_listed += [f"{library.name} defines {name}, which is marked"
                   for library in libraries
                   if f"{library.name}:" in sections()
                   for name in sorted(set(exported(library)) & marked() - listed)]
    print("\n".join(not_listed or [f"{len(libraries)} libraries use listed names"]))
    if not_listed:
        print(f"Mark names that other libraries use with DTENSOR_INTERNAL_API, "
              f"and list marked names in {LIST}.")
    return bool(not_listed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", type=Path, nargs="+", metavar="library.so")
    parser.add_argument("--uses", action="store_true")
    options = parser.parse_args()
    if options.uses:
        return check_uses(options.libraries)
    found = {f"{library.name}:": exported(library) for library in options.libraries}
    listed = sections()
    if os.environ.get("DTENSOR_UPDATE_GOLDEN") == "1":
        write(listed | found)
        return 0
    changes = []
    for title, names in found.items():
        changes += difflib.unified_diff(
            listed[title], names, f"{LIST.name}, {title}", "built", "", "", 0, "")
    count = sum(map(len, found.values()))
    print("\n".join(changes or [f"{count} exported names as listed"]))
    return bool(changes)


if __name__ == "__main__":
    sys.exit(main())
