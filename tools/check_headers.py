#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""House rules that no compiler checks, for every file under dtensor/. The build
target dtensor_header_checks compiles each header alone."""

import re
import sys
from pathlib import Path

SPDX = "// SPDX-License-Identifier: BSD-3-Clause"
LIMITS = {".h": 200, ".cpp": 400}
WIDE = re.compile(r"#include <(torch/torch|torch/extension|ATen/ATen)\.h>")
BARE_CHECK = re.compile(r"\b(TORCH_CHECK(_\w+)?|AT_ERROR)\s*\(|\bthrow std::")
LISTED = re.compile(r"^\s*(dtensor/\S+)$", re.M)
# Layers with subfolders whose public headers are in the layer's folder.
PUBLIC_ABOVE = {"comm", "ops", "parallel"}
INCLUDED = re.compile(r"^#include [<\"](.+)[>\"]", re.M)
UNNAMED = re.compile(r"^namespace \{$.*?^\} // namespace$", re.M | re.S)
# Function definitions at the start of a line. Macros such as DTENSOR_RULES
# register their definitions.
DEFINED = re.compile(r"^(?![#/} ])(?:.*[ &*])?(?:\w+::)*(\w*[a-z]\w*)\(", re.M)

# Uses of LibTorch's internals, which may change. The table in torch_internals.h
# must list the name that follows.
INTERNALS = "dtensor/torch_internals.h"
WATCHED = re.compile(
    r"autograd::impl::(\w+)|at::detail::(\w+)|(\w*graph_task\w*)|"
    r"(queue_callback|getComputedKernel\w*)|\"(?:\w+::)*(\w+Backward0)\"|"
    r"#include <(caffe2/serialize)")
SUITE = "TorchInternals"


def check_file(name: str, lines: list[str]) -> list[str]:
    library = not name.startswith("dtensor/testing/")
    errors = []
    if lines[:1] != [SPDX]:
        errors.append(f"{name}:1: the first line must be '{SPDX}'")
    if len(lines) > (most := LIMITS[Path(name).suffix]):
        errors.append(f"{name}: {len(lines)} lines, more than {most}: split the file")
    for number, line in enumerate(lines, 1):
        if library and WIDE.match(line):
            errors.append(f"{name}:{number}: include the narrow headers you use")
        if library and name != "dtensor/error.h" and BARE_CHECK.search(line):
            errors.append(f"{name}:{number}: report with DTENSOR_CHECK: [where] ...")
    return errors


def check_first_include(name: str, files: dict[str, str]) -> list[str]:
    """Checks that a source first includes its own header: the header with its
    name, in its folder or the layer's folder. If there is none, its header is one
    that declares a function that the source defines."""
    own = [header for end in (".h", "_impl.h")
           if (header := name.removesuffix(".cpp") + end) in files]
    layer, _, rest = name.removeprefix("dtensor/").partition("/")
    public = f"dtensor/{layer}/{Path(rest).stem}.h"
    if not own and public in files and layer in PUBLIC_ABOVE:
        own = [public]
    first = next(iter(INCLUDED.findall(files[name])), "")
    defined = set(DEFINED.findall(UNNAMED.sub("", files[name])))
    declared = set(re.findall(r"\w+", re.sub(r"//.*", "", files.get(first, ""))))
    if first in own or not own and (not defined or defined & declared):
        return []
    wanted = " or ".join(own) or "a header that declares what it defines"
    return [f"{name}: the first include is {first or 'missing'} and should be {wanted}"]


def internals(text: str) -> list[tuple[set[str], set[str], str]]:
    """Returns the entries of the table: names, places ("ops",
    "ops/install/install.cpp", "all") and the test. Further indented lines belong to the
    entry above."""
    table = text[text.index("\n// what  "):text.index("#pragma once")]
    entries = []
    for line in table.splitlines()[2:]:
        first, *rest = re.split(r"\s{2,}", line[3:].strip())
        if not line.startswith("//   "):
            entries.append((set(), {rest[0]}, rest[1]))
            continue
        entries[-1][0].update(first.split(", "))
        entries[-1][1].update(place for r in rest for place in r.split(", "))
    return entries


def check_internals(files: dict[str, str], tests: str) -> list[str]:
    """Checks that every use of internals is in the table, and that the table is
    correct."""
    entries = internals(files[INTERNALS])
    listed = {name for names, _, _ in entries for name in names}
    found: set[tuple[str, str]] = set()
    errors = []
    for file, text in files.items():
        if file.startswith("dtensor/testing/") or file == INTERNALS:
            continue
        code = re.sub(r"//.*", "", text)
        mentions = {"".join(m) for m in WATCHED.findall(code)}
        mentions |= {n for n in listed if re.search(rf"(?<!\w){n}(?!\w)", code)}
        inside = file.removeprefix("dtensor/")
        here = {"all", inside, inside.split("/")[0]}
        found |= {(name, place) for name in mentions for place in here}
        errors += [
            f"{file}: {name} is not listed for {inside.split('/')[0]} in {INTERNALS}"
            for name in sorted(mentions)
            if not any(name in names and here & places for names, places, _ in entries)]
    for names, places, test in entries:
        errors += [f"{INTERNALS}: {place} does not mention any of {', '.join(sorted(names))}"
                   for place in sorted(places)
                   if names and not any((name, place) in found for name in names)]
        if test.startswith(("the ", "asserted")):
            continue
        suite, _, case = test.rpartition(".")
        case = r"\w+" if case == "*" else case
        if not re.search(rf"\bTEST(_[FP])?\({suite or SUITE},\s*{case}\)", tests):
            errors.append(f"{INTERNALS}: test {test} does not exist")
    told = {test for _, _, test in entries}
    errors += [f"{INTERNALS}: no entry names {SUITE}.{case}"
               for case in re.findall(rf"\bTEST\({SUITE},\s*(\w+)\)", tests)
               if case not in told]
    return errors


def check(root: Path) -> list[str]:
    cmake = (root / "cmake/sources.cmake").read_text()
    public = "\n".join(re.findall(r"_HEADERS\n(.*?)\)", cmake, re.S))
    umbrella = (root / "dtensor/dtensor.h").read_text()
    errors = [f"{name}: internal, list it among the sources"
              for name in LISTED.findall(public) if name.endswith("_impl.h")]
    files = {
        file.relative_to(root).as_posix(): file.read_text()
        for file in sorted(root.glob("dtensor/**/*")) if file.suffix in LIMITS
    }
    for name, text in files.items():
        errors += check_file(name, text.splitlines())
        if name.endswith(".cpp"):
            errors += check_first_include(name, files)
        internal = name.endswith((".cpp", "_impl.h"))
        if name not in LISTED.findall(cmake if internal else public):
            errors.append(f"{name}: missing from cmake/sources.cmake, or in the wrong list")
        apart = internal or name.startswith(
            ("dtensor/contrib/", "dtensor/dtensor.h", "dtensor/testing/"))
        if not apart and f"#include <{name}>" not in umbrella:
            errors.append(f"{name}: missing from dtensor/dtensor.h")
    tests = "".join(file.read_text() for file in root.glob("tests/**/*_test.cpp"))
    return errors + check_internals(files, tests)


if __name__ == "__main__":
    found = check(Path(__file__).resolve().parent.parent)
    print("\n".join(found) or "check_headers: all files follow the rules")
    sys.exit(bool(found))
