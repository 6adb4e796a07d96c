#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A layer includes only what lies below it.

Reads every source under dtensor/ and compares its `#include <dtensor/...>`
lines with LAYERS, the table that docs/architecture.md explains. Prints one
line per arrow that points up and exits 1 if there is any.
"""

import re
import sys
from pathlib import Path

# From the bottom. A folder includes itself and the folders before it.
LAYERS = ["", "layout", "comm", "redistribute", "tensor", "ops", "parallel"]
# Leaves include all layers; no layer and no other leaf includes them.
LEAVES = ["checkpoint", "debug", "experimental"]
# A target of its own on top of the library: includes all, included by none.
TESTING = "testing"
# The world of threads is one of many: none but it, and tests, name it.
THREADS = "dtensor/comm/threads/"
# Includes every public header of the library.
UMBRELLA = "dtensor/dtensor.h"

INCLUDE = re.compile(r'^\s*#\s*include\s*(<|")([^>"]+)[>"]')


def layer_of(path: str) -> str:
    """dtensor/ops/rules/matmul.cpp -> ops; dtensor/error.h -> ''."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else ""


def allowed(source: str, target: str) -> bool:
    """May a file of folder `source` include one of folder `target`?"""
    if source == target or source == TESTING:
        return True
    if target in LEAVES or target == TESTING:
        return False
    if source in LEAVES:
        return True
    return LAYERS.index(target) <= LAYERS.index(source)


def check(root: Path) -> list[str]:
    known = {*LAYERS, *LEAVES, TESTING}
    errors = []
    for file in sorted((root / "dtensor").rglob("*")):
        if file.suffix not in (".h", ".cpp"):
            continue
        name = file.relative_to(root).as_posix()
        source = layer_of(name)
        if source not in known:
            errors.append(f"{name}:1: folder '{source}' is in no layer")
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, target = match.groups()
            where = f"{name}:{number}: "
            if quote == '"':
                errors.append(where + f'write <dtensor/...>, not "{target}"')
            elif target == UMBRELLA:
                errors.append(where + "the library never includes its umbrella")
            elif target.startswith("dtensor/") and name != UMBRELLA:
                folder = layer_of(target)
                if folder not in known or not allowed(source, folder):
                    errors.append(where + f"'{source}' may not include {target}")
                elif target.startswith(THREADS) and not (
                    name.startswith(THREADS) or source == TESTING
                ):
                    errors.append(where + f"only {THREADS} may include {target}")
    return errors


if __name__ == "__main__":
    found = check(Path(__file__).resolve().parent.parent)
    print("\n".join(found) or "check_layers: every include points down")
    sys.exit(bool(found))
