#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Copies snippets of the examples, which are built and run as tests, into docs.

A page gives the source of a code block above it:

    <!-- examples/tutorial/3_train.cpp plan -->
    ```cpp

The block is the text between `// [plan]` and `// [/plan]` in the file. Without
a name, the block is the full file. CMake files can be quoted too. With --check: fails
if a block is out of date, if a snippet is missing or is not on any page, and if
a page with such blocks has another block of C++ with more than three lines.
"""
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHORT = 3  # maximum length of blocks that need no source
BLOCK = re.compile(
    r"(?:^<!-- (?P<file>[\w./]+)(?: (?P<name>\w+))? -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
MARK = re.compile(r"^ *(//|#) \[/?\w+\]\n", re.M)
BEGIN = re.compile(r"^ *(?://|#) \[(\w+)\]$", re.M)


def piece(file: str, name: str | None) -> str:
    """Returns the text of a block. Raises ValueError if there is none."""
    path = ROOT / file
    if not path.exists():
        raise ValueError(f"{file} does not exist")
    text = path.read_text()
    if name is None:
        return MARK.sub("", text.split("\n", 1)[1])
    found = re.findall(
        rf"^ *(?://|#) \[{name}\]\n(.*?)^ *(?://|#) \[/{name}\]$", text, re.M | re.S)
    if len(found) != 1:
        raise ValueError(f"{file} has {len(found)} snippets named {name}, expected 1")
    return MARK.sub("", textwrap.dedent(found[0])).strip("\n") + "\n"


def update(page: str, text: str, shown: set, problems: list[str]) -> str:
    """Returns the page with its blocks updated."""
    copies = any(match["file"] for match in BLOCK.finditer(text))

    def block(match: re.Match) -> str:
        if match["file"]:
            shown.add((match["file"], match["name"]))
            try:
                new = piece(match["file"], match["name"])
            except ValueError as error:
                problems.append(f"{page}: {error}")
                return match[0]
            begin = match[0].index("```")
            return f"{match[0][:begin]}```{match['language']}\n{new}```"
        is_long = match["text"].count("\n") > SHORT
        if copies and match["language"] == "cpp" and is_long:
            first = match["text"].split("\n")[0]
            problems.append(f"{page}: snippet without a program: {first}")
        return match[0]

    return BLOCK.sub(block, text)


def main() -> int:
    check = "--check" in sys.argv[1:]
    problems: list[str] = []
    shown: set[tuple[str, str | None]] = set()
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        page, old = str(path.relative_to(ROOT)), path.read_text()
        new = update(page, old, shown, problems)
        if check and new != old:
            problems.append(f"{page} is out of date: run tools/snippets_doc.py")
        elif new != old:
            path.write_text(new)
    for path in sorted((ROOT / "examples").rglob("*.*")):
        file = str(path.relative_to(ROOT))
        for name in BEGIN.findall(path.read_text()):
            if (file, name) not in shown:
                problems.append(f"{file}: snippet {name} is not used by any page")
    print("\n".join(problems), end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
