#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/reference/operators.md from tests/golden/rules.txt.

With --check: fails if the file is out of date.
"""
import sys

import golden_doc

HEAD = """# Operators

What every operator with a rule may do on one mesh dimension: the placements of
its tensor operands, then those of its results, for operands of the shapes that
are given ([layouts](../concepts/layouts.md) explains the notation). Of kernels,
which take their operands in any layout, it says what they make of the first one.
Everything replicated is always possible and not listed, nor is `SS` in place of
`S`, nor are [units](../concepts/layouts.md#units), of which the last rows give
examples, `(heads)`. `P` is a partial value of one of the reductions that follow; any other
partial operand is reduced first. In-place, `out=` and `_foreach_` forms follow
from their operator ([operators](../concepts/operators.md)); an operator that
stands nowhere here computes on replicated tensors.

Written by `tools/operators_doc.py` from `tests/golden/rules.txt`, which a test
compares with the rules.
"""

# Meaning of the notes, in the order of their explanation.
NOTES = {
    "kernel": "written for DTensors; redistributes other operands as needed",
    "LibTorch's decomposition": "decomposed by LibTorch into operators with rules",
    "region": "computed on local tensors together with its gradient",
    "local kernel": "each rank's computation differs from the plain operator",
    "local size": "the local call gets the local shape of the result",
    "local arguments": "the local call gets adapted arguments",
    "own shapes": "its rule computes the shapes of results, instead of LibTorch's meta kernel",
    "depends on values": "the layout depends on the values of its scalar arguments",
    "differs in gradients": "a gradient formula that calls it may get another layout",
    "no strided shards": "takes no `SS`",
    "unboxed": "has a fast path for calls that only run the local operator",
    "product": "on matrices its gradient is LibTorch's formula on DTensors",
    "LibTorch's gradient formula": "its gradient is LibTorch's formula on DTensors",
    "plain tensors in the gradient": "its gradient is computed on replicated tensors",
    "gradient of sizes": "LibTorch makes its gradient of sizes; it becomes distributed",
    "takes plain tensors": "writes plain tensors that are the same on every rank",
    "carries a style": "its result on a parameter is styled as the parameter is",
    "carries a style of rows": "some rows of a parameter are styled as it is, where its style says so",
    "adds a styled bias": "adds a module's bias to a plain local output",
    "modules create an argument": "takes a plain state of zeros, or plain even offsets",
    "styled as a linear layer": "what a style of a linear layer acts on",
    "styled as an embedding": "what a style of an embedding acts on",
    "styled as a norm": "what a style of a normalization acts on",
}


class Block:
    """Operators with equal rules, and these rules."""

    def __init__(self, text: str):
        lines = text.split("\n")
        said = [line.strip() for line in lines if line.startswith("  ")]
        names = " ".join(line for line in lines if not line.startswith("  "))
        self.names = names.split(", ")
        self.notes: list[str] = []
        self.operands = ""
        self.strategies: list[str] = []
        for line in said:
            if line.startswith("notes: "):
                self.notes = line.removeprefix("notes: ").split(", ")
            elif line.startswith("of "):
                self.operands = line.removeprefix("of ")
            else:
                self.strategies.append(line)

    def has_strategies(self) -> bool:
        return bool(self.operands)


def code(items: list[str], separator: str = ", ") -> str:
    return separator.join(f"`{item}`" for item in items)


def takes_partial(strategy: str) -> bool:
    return "P" in strategy.split(" -> ")[0]


def row(block: Block) -> str:
    cut = [s for s in block.strategies if not takes_partial(s)]
    partial = [s for s in block.strategies if takes_partial(s)]
    cells = (
        code(block.names),
        code([block.operands]),
        code(cut, "<br>"),
        code(partial, "<br>"),
        ", ".join(block.notes),
    )
    return "| " + " | ".join(cells) + " |"


def render(golden: str) -> str:
    blocks = [Block(text.strip("\n")) for text in golden.split("\n\n")[1:]]
    unknown = {note for block in blocks for note in block.notes} - set(NOTES)
    assert not unknown, f"explain {unknown} in tools/operators_doc.py"
    parts = [HEAD, "## Rules\n"]
    parts.append("| operators | of | may be sharded | may be partial | notes |")
    parts.append("|---|---|---|---|---|")
    parts += [row(block) for block in blocks if block.has_strategies()]
    parts.append("\n## Without strategies\n")
    parts.append("| operators | notes |")
    parts.append("|---|---|")
    parts += [
        f"| {code(block.names)} | {', '.join(block.notes)} |"
        for block in blocks
        if not block.has_strategies()
    ]
    parts.append("\n## Notes\n")
    parts += [f"- **{note}**: {meaning}." for note, meaning in NOTES.items()]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(golden_doc.main("rules.txt", "operators.md", render))
