#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/reference/headers: a page for each layer with every declaration
of its public headers and its comment, and a page that lists all names.

With --check: fails if a page is out of date.
"""
import re
import sys
from pathlib import Path

from golden_doc import settle
from header_reader import Declaration, HeaderReader, head_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference" / "headers"
LAYERS = {
    "layout": "meshes, placements and specs: pure values",
    "comm": "ranks, worlds, groups and collectives",
    "redistribute": "from one layout to another",
    "tensor": "DTensors, and how they are made",
    "random": "random numbers that do not depend on the layout",
    "ops": "rules of operators, and scopes that change what operators may do",
    "parallel": "module styles, hooks, gradients, state dictionaries",
    "data_parallel": "parameters in parts, and gradients averaged in buckets",
    "deferred": "models described before they exist",
    "weights": "files of weights, read part by part",
    "checkpoint": "training runs in a folder, loaded into any layout",
    "program": "programs that torch.export wrote, on ranks",
    "debug": "what is communicated, who holds what",
    "legacy_tp": "the module `dtensor::legacy_tp`: tensor parallelism of PyTorch 2.0",
    "torchscript": "the module `dtensor::torchscript`: TorchScript models on ranks",
    "testing": "the target `dtensor::testing`: for tests of programs that use dtensor",
    "base": "errors and the version",
}
# Headers for internal use, and headers without declarations of their own.
LEFT_OUT = ("dtensor/api.h", "dtensor/dtensor.h", "dtensor/torch_internals.h",
            "dtensor/tensor/map_leaves.h")
WRITTEN = "Written by `tools/headers_doc.py` from the headers; `make test` checks it."


# --- comments as Markdown -----------------------------------------------------


def escaped(text: str) -> str:
    """Escapes prose, in which only `code` is Markdown. Names of headers and
    pages become links."""
    parts = re.split(r"(`[^`]*`|https?://\S+)", text)
    for i in range(0, len(parts), 2):
        part = re.sub(r"([*<|\\])", r"\\\1", parts[i])
        part = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", part)
        part = re.sub(r"\bdocs/([\w/]+\.md)", r"[\1](../../\1)", part)
        parts[i] = re.sub(r"\b(\w+)/(\w+)\.h\b", linked_header, part)
    return "".join(parts)


def linked_header(match: re.Match) -> str:
    header, layer = match[0], match[1]
    known = layer in LAYERS and f"dtensor/{header}" in headers_of(layer)
    return f"[{header}]({layer}.md#{anchor_of(header)})" if known else header


def sentences(text: str) -> list[str]:
    """Splits a paragraph: errors and Python's name start new paragraphs."""
    return re.split(r"(?<=[.:)]) (?=Throws |Python: )", text)


def as_markdown(lines: list[str]) -> str:
    """Converts a comment: paragraphs and lists; indented lines are code."""
    blocks: list[tuple[str, list[str]]] = []
    for line in lines:
        kind = "text"
        if not line.strip():
            kind = "blank"
        elif line.startswith("- "):
            kind = "item"
        elif line.startswith("  "):
            in_item = blocks and blocks[-1][0] == "item" and not line.startswith("   ")
            kind = "item" if in_item else "code"
        begins = not blocks or blocks[-1][0] != kind or line.startswith("- ")
        if kind == "blank" and blocks and blocks[-1][0] == "code":
            blocks[-1][1].append("")
        elif begins:
            blocks.append((kind, [line]))
        else:
            blocks[-1][1].append(line)
    out = []
    for kind, text in joined_code(blocks):
        flat = escaped(" ".join(line.strip() for line in text))
        if kind == "code":
            least = min(len(l) - len(l.lstrip()) for l in text if l.strip())
            code = "\n".join(l[least:] for l in text).strip("\n")
            out.append(f"```{language_of(code)}\n{code}\n```")
        elif kind == "item":
            out.append(flat)
        elif kind == "text":
            out += sentences(flat)
    text = "\n\n".join(out)
    return re.sub(r"(?m)^(- .*)\n\n(?=- )", r"\1\n", text)


def joined_code(blocks):
    """Joins code blocks that are separated only by blank lines."""
    found: list[tuple[str, list[str]]] = []
    for kind, text in blocks:
        if kind == "blank":
            continue
        if kind == "code" and found and found[-1][0] == "code":
            found[-1][1].extend(text)
        else:
            found.append((kind, list(text)))
    return found


def language_of(code: str) -> str:
    return "cpp" if re.search(r"[;{}]\s*(//.*)?$", code, re.M) else "text"


# --- declarations -------------------------------------------------------------


def code(texts: list[str]) -> str:
    return "```cpp\n" + "\n".join(texts) + "\n```"


def field_rows(members: list[Declaration]) -> str:
    rows = ["| field | |", "|---|---|"]
    for m in members:
        names = "<br>".join(f"`{' '.join(t.rstrip(';').split())}`" for t in m.texts)
        doc = as_markdown(m.doc).replace("\n\n", "<br>").replace("\n", " ")
        rows.append(f"| {names.replace('|', chr(92) + '|')} | {doc} |")
    return "\n".join(rows)


def is_field(m: Declaration) -> bool:
    return not m.kind and not m.is_note and all(
        "(" not in t.split("=")[0].split("{")[0].replace("std::function", "")
        or re.match(r"std::function<", t) for t in m.texts
    ) and not m.texts[0].startswith(("using", "friend", "template"))


def render_member(member: Declaration, level: int) -> str:
    if member.is_note:
        return as_markdown(member.doc)
    if member.kind:
        return render(member, level + 1)
    protected = ["protected:"] if member.access == "protected" else []
    return "\n\n".join(filter(None, [
        code(protected + member.texts), as_markdown(member.doc)]))


def heading_of(item: Declaration) -> str:
    kind = f"{item.kind} " if item.kind in ("class", "struct") else ""
    names = item.names()
    more = " and others" if len(names) > 2 else ""
    return kind + ", ".join(names[:2]) + more


def render(item: Declaration, level: int = 3) -> str:
    if item.is_note:
        return as_markdown(item.doc)
    parts = [f"{'#' * level} {heading_of(item)}"]
    if item.texts != [f"{item.kind} {item.name};"]:
        parts.append(code(item.texts))
    parts.append(as_markdown(item.doc))
    fields = [m for m in item.members if is_field(m)]
    if fields:
        parts.append(field_rows(fields))
    parts += [render_member(m, level) for m in item.members if m not in fields]
    return "\n\n".join(filter(None, parts))


def merged(items: list[Declaration]) -> list[list[Declaration]]:
    """Merges declarations of one name under one heading."""
    found: list[list[Declaration]] = []
    for item in items:
        same = found and not item.kind and item.names() == found[-1][0].names()
        if same:
            found[-1].append(item)
        else:
            found.append([item])
    return found


# --- pages --------------------------------------------------------------------


def anchor_of(heading: str) -> str:
    """Returns GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


class Anchors:
    """Anchors of a page, in order; equal ones are numbered."""

    def __init__(self):
        self.seen: dict[str, int] = {}

    def of(self, heading: str) -> str:
        base = anchor_of(heading)
        count = self.seen.get(base, -1) + 1
        self.seen[base] = count
        return base if count == 0 else f"{base}-{count}"


def namespace_of(text: str) -> str:
    """Returns the namespace to show: nothing for `dtensor` and macros."""
    found = re.findall(r"^namespace (dtensor[\w:]*) \{", text, re.M)
    inner = [name for name in found if name != "dtensor" and "detail" not in name]
    return f"; namespace `{inner[0]}`" if inner else ""


def headers_of(layer: str) -> list[str]:
    text = (ROOT / "cmake/sources.cmake").read_text()
    listed = re.search(rf"set\(DTENSOR_{layer.upper()}_HEADERS\n(.*?)\)", text, re.S)
    return [h for h in listed[1].split() if h not in LEFT_OUT]


def page_of(layer: str) -> tuple[str, list[tuple[str, str]]]:
    """Returns the page, and (name, anchor) of its declarations."""
    title = "dtensor" if layer == "base" else layer
    parts = [f"# {title}: {LAYERS[layer]}", WRITTEN]
    anchors, names = Anchors(), []
    anchors.of(f"{title}: {LAYERS[layer]}")
    bodies, contents = [], ["| header | declares |", "|---|---|"]
    for header in headers_of(layer):
        text = (ROOT / header).read_text()
        short = header.removeprefix("dtensor/")
        place = anchors.of(short)
        body = [f"## {short}", as_markdown(head_of(text)),
                f"[The file](../../../{header}){namespace_of(text)}"]
        links = []
        for items in merged(HeaderReader(text).read()):
            first, *others = items
            rendered = [render(first), *(render_member(o, 3) for o in others)]
            body.append("\n\n".join(rendered))
            for heading in re.findall(r"^#{3,5} (.*)$", rendered[0], re.M):
                anchor = anchors.of(heading)
                if heading != heading_of(first):
                    continue
                for name in first.names():
                    names.append((name, anchor))
                    links.append(f"[`{name}`](#{anchor})")
        contents.append(f"| [{short}](#{place}) | {', '.join(links)} |")
        bodies.append("\n\n".join(body))
    parts += ["\n".join(contents), *bodies]
    return "\n\n".join(parts) + "\n", names


def index_of(names: dict[str, list[tuple[str, str]]]) -> str:
    parts = [
        "# The headers",
        "Every public declaration with its comment, by layer "
        "([architecture](../../architecture.md)). `#include <dtensor/dtensor.h>` "
        "has all of them but those of `testing` and of the modules `legacy_tp` and "
        "`torchscript`; each header may be included alone.",
        WRITTEN,
        "\n".join(["| page | |", "|---|---|", *(
            f"| [{layer}]({layer}.md) | {LAYERS[layer]} |" for layer in LAYERS)]),
        "## All names",
    ]
    links: dict[str, list[str]] = {}
    for layer, found in names.items():
        for name, anchor in found:
            if "operator" not in name:
                links.setdefault(name, []).append(f"{layer}.md#{anchor}")
    rows = []
    for name in sorted(links, key=str.lower):
        first, *others = links[name]
        more = "".join(f", [{i}]({o})" for i, o in enumerate(others, 2))
        rows.append(f"[`{name}`]({first}){more}")
    parts.append(" · ".join(rows))
    return "\n\n".join(parts) + "\n"


def main() -> int:
    pages, names = {}, {}
    for layer in LAYERS:
        pages[f"{layer}.md"], names[layer] = page_of(layer)
    pages["README.md"] = index_of(names)
    stray = [page.name for page in PAGES.glob("*") if page.name not in pages]
    for name in stray:
        print(f"docs/reference/headers/{name} belongs to no layer: remove it")
    old = settle({PAGES / name: text for name, text in pages.items()},
                 "--check" in sys.argv[1:])
    return int(old or bool(stray))


if __name__ == "__main__":
    sys.exit(main())
