# SPDX-License-Identifier: BSD-3-Clause
"""A page of the docs that a tool writes from a golden file of the tests."""
import pathlib
import sys
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main(golden_name: str, page_name: str, render: Callable[[str], str]) -> int:
    """Writes a page of docs/reference from a file of tests/golden.

    With --check on the command line: 1 if the page is not what would be
    written.
    """
    golden = ROOT / "tests" / "golden" / golden_name
    page = ROOT / "docs" / "reference" / page_name
    text = render(golden.read_text())
    if "--check" in sys.argv[1:]:
        if not page.exists() or page.read_text() != text:
            print(f"{page.relative_to(ROOT)} is old: run tools/{pathlib.Path(sys.argv[0]).name}")
            return 1
        return 0
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text)
    return 0
