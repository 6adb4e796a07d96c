#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the sources of the site to build/docs/source.

Copies the pages, at their paths, and adds to them what a reader on GitHub gets
from a link:
- a page for each public header, and one for each folder of headers
- the texts of tests/golden, in the pages that introduce them
- the documentation of the Python package, in the page that lists its names
- a page for each notebook, with its outputs
- a page for each other file or folder to which a page links, with its content

The sidebar lists the pages in the order in which README.md links to them.
"""
import os
import re
from pathlib import Path

import golden
import notebooks
import python_reference

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build/docs/source"
HEADERS = "docs/reference/headers.md"  # lists the folders of headers
LEFT_OUT = re.compile(r"EXCLUDE +=((?:.*\\\n)*.*)")
CAPTIONS = {"docs": "About", "docs/concepts": "Concepts", "docs/guides": "Guides",
            "docs/notebooks": "Guides", "docs/reference": "Reference"}
LANGUAGES = {".cpp": "cpp", ".h": "cpp", ".py": "python", ".sh": "sh", ".json": "json"}
DOCUMENTS = [*map(Path, ("CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md")),
             *(path.relative_to(ROOT) for path in sorted(ROOT.glob("docs/**/*.md")))]
NOTEBOOKS = [path.relative_to(ROOT) for path in sorted(ROOT.glob("docs/**/*.ipynb"))]
# Link or image outside of code. A target that does not exist stays as it is.
LINK = re.compile(r"(\]\()([^()\s#]+)((?:#[^()\s]*)?\))")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.M | re.S)


# --- public headers ----------------------------------------------------------


def public_headers() -> list[Path]:
    doxyfile = (ROOT / "docs/site/Doxyfile").read_text()
    left_out = LEFT_OUT.search(doxyfile)[1].split()
    found = [path.relative_to(ROOT) for path in sorted((ROOT / "dtensor").rglob("*.h"))]
    return [path for path in found
            if not path.name.endswith("_impl.h") and str(path) not in left_out]


def summary_of(header: Path) -> str:
    """Returns the first sentence of the header's prose."""
    lines = (ROOT / header).read_text().split("#pragma once")[0].split("\n")[1:]
    prose = " ".join(line[2:].strip() for line in lines).split("  ")[0]
    sentence = re.split(r"(?<=[.:]) (?=[A-Z])|,$", prose)[0].strip(" ,:")
    return re.sub(r"([<*|])", r"\\\1", re.sub(r"^\w+: ", "", sentence))


def header_page(header: Path) -> str:
    return f"# {header.name}\n\n`#include <{header}>`\n\n```{{header}} {header}\n```\n"


def folder_page(folder: Path, headers: list[Path]) -> str:
    items = "\n".join(f"- [{h.name}]({h.name}.md): {summary_of(h)}" for h in headers)
    return f"# {folder}\n\n{items}\n\n{toctree([f'{h.name}.md' for h in headers])}"


def toctree(pages: list[str], caption: str = "") -> str:
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    names = "\n".join(re.sub(r"\.(md|ipynb)$", "", page) for page in pages)
    return f"```{{toctree}}\n{options}\n{names}\n```\n"


# --- other files -------------------------------------------------------------


def file_page(path: Path) -> str:
    """Returns a page that shows a file. Search omits it."""
    language = LANGUAGES.get(path.suffix, "text")
    text = (ROOT / path).read_text()
    return f"---\norphan: true\nnosearch: true\n---\n# {path}\n\n````{language}\n{text}\n````\n"


def listing_page(folder: Path) -> str:
    entries = [entry for entry in sorted((ROOT / folder).iterdir())
               if entry.name[0] not in "._" and not entry.name.startswith("__")]
    entries.sort(key=lambda entry: entry.is_file())
    links = "\n".join(f"- [{e.name}{'/' if e.is_dir() else ''}]({e.name})" for e in entries)
    return f"---\norphan: true\nnosearch: true\n---\n# {folder}\n\n{links}\n"


# --- the site ----------------------------------------------------------------


class Site:
    def __init__(self):
        self.pages: dict[Path, str] = {}  # page in the site -> text
        self.copies: set[Path] = set()

    def page_of(self, target: Path) -> Path | None:
        """Returns the page in the site of a file or folder, which is added if
        it is new."""
        path = ROOT / target
        if target == Path("README.md"):
            return Path("index.md")
        if target.suffix == ".svg":
            self.copies.add(target)
            return target
        if target in DOCUMENTS:
            return target
        if target in NOTEBOOKS:
            return target.with_suffix(".md")
        page = target / "index.md" if path.is_dir() else target.with_name(target.name + ".md")
        if page not in self.pages and path.exists():
            self.add(page, listing_page(target) if path.is_dir() else file_page(target))
        return page if path.exists() else None

    def add(self, page: Path, text: str, source: Path | None = None) -> None:
        """Adds a page, with its links to files turned into links to pages.
        `source` is the file of the page, if it has another path."""
        self.pages[page] = text
        base = (ROOT / (source or page)).parent

        def linked(match: re.Match) -> str:
            if ":" in match[2]:
                return match[0]
            if match[2].endswith(".h.md"):
                return match[0]
            target = Path(os.path.relpath(base / match[2], ROOT))
            found = self.page_of(target) if target.parts[0] != ".." else None
            to = os.path.relpath(found, page.parent) if found else match[2]
            return match[1] + to + match[3]

        parts = CODE.split(text)
        parts[::2] = [LINK.sub(linked, part) for part in parts[::2]]
        self.pages[page] = "".join(parts)

    def add_headers(self) -> list[str]:
        """Adds the pages of headers. Returns those of the folders, in the order
        of the page that lists them."""
        headers = public_headers()
        for header in headers:
            self.pages[header.with_name(header.name + ".md")] = header_page(header)
        for folder in {header.parent for header in headers}:
            inside = [header for header in headers if header.parent == folder]
            self.pages[folder / "index.md"] = folder_page(folder, inside)
        listed = re.findall(r"\]\(\.\./\.\./(dtensor[\w/]*)\)", (ROOT / HEADERS).read_text())
        return [f"/{folder}/index.md" for folder in listed]

    def add_documents(self, folders: list[str]) -> None:
        for page in DOCUMENTS:
            text = (ROOT / page).read_text()
            if str(page) == HEADERS:
                text += "\n" + toctree(folders)
            text = golden.completed(ROOT, page, text)
            self.add(page, python_reference.completed(page, text))

    def add_notebooks(self) -> None:
        for path in NOTEBOOKS:
            self.add(path.with_suffix(".md"), notebooks.page_of((ROOT / path).read_text()))

    def add_start(self) -> None:
        """Adds README.md as the start page, with the sidebar."""
        text = (ROOT / "README.md").read_text()
        groups: dict[str, list[str]] = {}
        for page in dict.fromkeys(re.findall(r"\]\(([\w./]+\.(?:md|ipynb))\)", text)):
            caption = CAPTIONS.get(os.path.dirname(page), "About")
            groups.setdefault("Start" if page == "docs/tutorial.md" else caption, []).append(page)
        order = ["Start", "Guides", "Concepts", "Reference", "About"]
        groups["Reference"].append("genindex")
        trees = [toctree(groups[caption], caption) for caption in order]
        self.add(Path("index.md"), "\n".join([text, *trees]), Path("README.md"))

    def write(self) -> None:
        """Writes what has changed, and removes what is no longer there."""
        texts = {OUT / page: text.encode() for page, text in self.pages.items()}
        texts |= {OUT / path: (ROOT / path).read_bytes() for path in self.copies}
        for path in [path for path in OUT.rglob("*") if path.is_file() and path not in texts]:
            path.unlink()
        for path, text in texts.items():
            if not path.exists() or path.read_bytes() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text)


def main() -> None:
    site = Site()
    folders = site.add_headers()
    site.add_documents(folders)
    site.add_notebooks()
    site.add_start()
    site.write()
    print(f"{len(site.pages)} pages")


if __name__ == "__main__":
    main()
