# SPDX-License-Identifier: BSD-3-Clause
"""Adds the texts of tests/golden to the pages that introduce them."""
import re
from pathlib import Path


def completed(root: Path, page: Path, text: str) -> str:
    """Returns the page with the content of its golden file, if it has one."""
    source = {"errors.md": ("errors.txt", errors), "operators.md": ("rules.txt", operators)}
    if page.parent != Path("docs/reference") or page.name not in source:
        return text
    name, render = source[page.name]
    return render(text, (root / "tests/golden" / name).read_text())


# --- errors ------------------------------------------------------------------


def errors(page: str, golden: str) -> str:
    """Adds a section for each situation, with its message."""
    parts = ["---\nhide-toc: true\n---\n" + page]
    for block in golden.split("\n== ")[1:]:
        title, text = block.strip().split("\n", 1)
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n"
                     f"```{{code-block}} text\n:class: wrapped\n\n{text.strip()}\n```\n")
    return "\n".join(parts)


# --- operators ---------------------------------------------------------------


class Block:
    """Operators with equal rules, and these rules."""

    def __init__(self, text: str):
        lines = text.split("\n")
        names = " ".join(line for line in lines if not line.startswith("  "))
        self.names = names.split(", ")
        self.notes: list[str] = []
        self.operands = ""
        self.strategies: list[str] = []
        for line in [line.strip() for line in lines if line.startswith("  ")]:
            if line.startswith("notes: "):
                self.notes = line.removeprefix("notes: ").split(", ")
            elif line.startswith("of "):
                self.operands = line.removeprefix("of ")
            else:
                self.strategies.append(line)


def code(items: list[str], separator: str = ", ") -> str:
    return separator.join(f"`{item}`" for item in items)


def takes_partial(strategy: str) -> bool:
    return "P" in strategy.split(" -> ")[0]


def row(block: Block) -> str:
    sharded = [s for s in block.strategies if not takes_partial(s)]
    partial = [re.sub(r"^(.*?)( of .*)?$", r"`\1`\2", s)
               for s in block.strategies if takes_partial(s)]
    operands = block.operands.replace("], ", "]\n").split("\n")
    cells = (code(block.names), code(operands), code(sharded, "<br>"),
             "<br>".join(partial), ", ".join(block.notes))
    return "| " + " | ".join(cells) + " |"


def operators(page: str, golden: str) -> str:
    """Adds two tables. The page explains the notes in a list."""
    blocks = [Block(text.strip("\n")) for text in golden.split("\n\n")[1:]]
    explained = set(re.findall(r"^- \*\*(.+)\*\*:", page, re.M))
    unknown = {note for block in blocks for note in block.notes} - explained
    if unknown:
        raise SystemExit(f"docs/reference/operators.md does not explain {sorted(unknown)}")
    rules = [row(block) for block in blocks if block.operands]
    others = [f"| {code(block.names)} | {', '.join(block.notes)} |"
              for block in blocks if not block.operands]
    return "\n".join([
        "---\nhide-toc: true\n---\n" + page,
        "## Rules\n",
        "{.rules}",
        "| operators | of | may be sharded | may be partial | notes |",
        "|---|---|---|---|---|", *rules,
        "\n## Without strategies\n",
        "| operators | notes |", "|---|---|", *others, ""])
