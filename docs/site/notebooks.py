# SPDX-License-Identifier: BSD-3-Clause
"""Turns notebooks into pages: their texts, their code, and the stored outputs."""
import json
import re

CONTROL = re.compile(r"\x1b\[[\d;]*m")  # colors of terminals


def block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def output(value: dict) -> str:
    """Returns a stored output: a picture if there is one, otherwise its text."""
    data = value.get("data", {"text/plain": value.get("text", "")})
    if "image/svg+xml" in data:
        return block("{raw} html", "".join(data["image/svg+xml"]))
    return block("text", CONTROL.sub("", "".join(data["text/plain"])))


def page_of(notebook: str) -> str:
    """Returns the page of a notebook's JSON text."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(block("python", source))
            parts += [output(value) for value in cell["outputs"]]
    return "\n\n".join(parts) + "\n"
