#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""House rules that no compiler sees, for every file under dtensor/. That each
header compiles alone is the build target dtensor_header_checks."""

import re
import sys
from pathlib import Path

SPDX = "// SPDX-License-Identifier: BSD-3-Clause"
LIMITS = {".h": 200, ".cpp": 400}
WIDE = re.compile(r"#include <(torch/torch|torch/extension|ATen/ATen)\.h>")
BARE_CHECK = re.compile(r"\b(TORCH_CHECK(_\w+)?|AT_ERROR)\s*\(|\bthrow std::")
LISTED = re.compile(r"^\s*(dtensor/\S+)$", re.M)


def undocumented(lines: list[str]) -> list[int]:
    """Lines that begin a DTENSOR_API declaration with no comment above.

    One comment may document several declarations without a blank line between
    them, the head of a file documents the class that it names, and an operator
    (printing, comparing) speaks for itself.
    """
    head = "\n".join(lines).split("#pragma once")[0]
    missing, covered = [], False
    for number, text in enumerate(map(str.strip, lines), 1):
        if not text or text.startswith(("//", "#")):
            covered = text.startswith("//")
        elif "DTENSOR_API" in text and not covered and "operator" not in text:
            name = re.match(r"(?:class|struct|enum class) DTENSOR_API (\w+)", text)
            if not (name and re.search(rf"\b{name[1]}\b", head)):
                missing.append(number)
    return missing


def check_file(name: str, lines: list[str]) -> list[str]:
    library = not name.startswith("dtensor/testing/")
    errors = []
    if lines[:1] != [SPDX]:
        errors.append(f"{name}:1: the first line must be '{SPDX}'")
    if len(lines) > (most := LIMITS[Path(name).suffix]):
        errors.append(f"{name}: {len(lines)} lines, more than {most}: split it by idea")
    for number, line in enumerate(lines, 1):
        if library and WIDE.match(line):
            errors.append(f"{name}:{number}: include the narrow headers you use")
        if library and name != "dtensor/error.h" and BARE_CHECK.search(line):
            errors.append(f"{name}:{number}: report with DTENSOR_CHECK: [where] ...")
    if name.endswith(".h") and not name.endswith(("_impl.h", "/api.h")):
        no_doc = "a public declaration without a comment"
        errors += [f"{name}:{n}: {no_doc}" for n in undocumented(lines)]
    return errors


def check(root: Path) -> list[str]:
    cmake = (root / "cmake/sources.cmake").read_text()
    public = "\n".join(re.findall(r"_HEADERS\n(.*?)\)", cmake, re.S))
    umbrella = (root / "dtensor/dtensor.h").read_text()
    errors = [f"{name}: internal, list it among the sources"
              for name in LISTED.findall(public) if name.endswith("_impl.h")]
    for file in sorted(p for p in root.glob("dtensor/**/*") if p.suffix in LIMITS):
        name = file.relative_to(root).as_posix()
        errors += check_file(name, file.read_text().splitlines())
        internal = name.endswith((".cpp", "_impl.h"))
        if name not in LISTED.findall(cmake if internal else public):
            errors.append(f"{name}: not in cmake/sources.cmake, or in a wrong list")
        apart = internal or name.startswith(("dtensor/dtensor.h", "dtensor/testing/"))
        if not apart and f"#include <{name}>" not in umbrella:
            errors.append(f"{name}: not in dtensor/dtensor.h")
    return errors


if __name__ == "__main__":
    found = check(Path(__file__).resolve().parent.parent)
    print("\n".join(found) or "check_headers: all files keep the rules")
    sys.exit(bool(found))
