# SPDX-License-Identifier: BSD-3-Clause
"""Adds the signatures and docstrings of the Python package to the page that lists
its names. sphinx-autoapi reads them from the sources, without importing them.

Also an extension of Sphinx, which shortens the signatures."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = Path("docs/reference/python_package.md")
NAME = re.compile(r"^- \[`dtensor\.(?:\w+\.)*(\w+)`\]\(.*\)$", re.M)
SOURCE = re.compile(r"/python/([\w/]+)\.pyi?\)")
MODULE = re.compile(r"\b(?:\w+\.)+(?=[A-Z])")


def entry(match: re.Match) -> str:
    """Returns the directive of a name, which is taken from the module that
    defines it. A class begins with a capital letter."""
    kind = "class" if match[1][0].isupper() else "function"
    options = "   :members:\n" if kind == "class" else ""
    module = SOURCE.search(match[0])[1].removesuffix("/__init__").replace("/", ".")
    name = f"{module}.{match[1]}"
    text = f".. default-domain:: py\n.. highlight:: python\n\n.. autoapi{kind}:: {name}\n"
    return f"```{{eval-rst}}\n{text}{options}```\n"


def completed(page: Path, text: str) -> str:
    """Returns the page with an entry in place of each name of its lists."""
    return NAME.sub(entry, text) if page == PAGE else text


def shorten(app, what, name, value, options, arguments, result) -> tuple:
    """Removes the modules of types from a signature."""
    return tuple(text and MODULE.sub("", text) for text in (arguments, result))


def skip(app, what, name, member, skipped, options) -> bool | None:
    """Leaves out members without a docstring, such as attributes."""
    return None if getattr(member, "docstring", "") else True


def note_sources(app, docname: str, text: list[str]) -> None:
    """Makes the page depend on the package, so that a change renews it."""
    if docname == str(PAGE.with_suffix("")):
        for path in (Path(__file__), *(ROOT / "python/dtensor").glob("*.py*")):
            app.env.note_dependency(str(path))


def setup(app) -> dict:
    app.connect("source-read", note_sources)
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
