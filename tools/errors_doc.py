#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/reference/errors.md from tests/golden/errors.txt.

With --check: fails if the file is out of date.
"""
import sys

import golden_doc

HEAD = """# Errors

What dtensor says to bad input. Every message has one form: `[where] what is
wrong: the values. What to do.` The type tells whose fault it is: ValueError and
IndexError for arguments, TypeError for the wrong kind, NotImplementedError for
an operator or module that has no rule, RuntimeError for a wrong state. In C++
they are `c10::ValueError`, ..., `c10::Error`.

Written by `tools/errors_doc.py` from `tests/golden/errors.txt`; a test provokes
each of them.
"""


def render(golden: str) -> str:
    parts = [HEAD]
    for block in golden.split("\n== ")[1:]:
        title, text = block.strip().split("\n", 1)
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n```\n{text.strip()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(golden_doc.main("errors.txt", "errors.md", render))
