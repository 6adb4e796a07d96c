# SPDX-License-Identifier: BSD-3-Clause
"""Writes generated pages of the docs, including those from golden files of the
tests."""
import pathlib
import sys
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent


def settle(pages: dict[pathlib.Path, str], check: bool) -> int:
    """Writes the pages. With --check, reports pages that are out of date, and
    returns 1 if there are any."""
    old = [page for page, text in pages.items()
           if not page.exists() or page.read_text() != text]
    for page in old:
        if check:
            print(f"{page.relative_to(ROOT)} is out of date: run tools/{pathlib.Path(sys.argv[0]).name}")
        else:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(pages[page])
    return int(check and bool(old))


def main(golden_name: str, page_name: str, render: Callable[[str], str]) -> int:
    """Writes a page of docs/reference from a file of tests/golden.

    With --check on the command line: returns 1 if the page is out of date.
    """
    golden = ROOT / "tests" / "golden" / golden_name
    pages = {ROOT / "docs" / "reference" / page_name: render(golden.read_text())}
    return settle(pages, "--check" in sys.argv[1:])
