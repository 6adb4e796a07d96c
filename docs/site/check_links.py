#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks all links of a built site: each page, file and anchor must exist, and
scripts, styles and images must come from the site itself.

Usage: check_links.py <folder>
"""
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "object": "data"}


class Page(HTMLParser):
    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes) -> None:
        given = {name: value for name, value in attributes if value}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag in LOADED and LOADED[tag] in given:
            self.loaded.add(given[LOADED[tag]])


def problem_of(site: Path, pages: dict[Path, Page], path: Path, link: str) -> str:
    """Returns the reason why a link of a page is broken, or nothing."""
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return ""
    target = (path.parent / unquote(url.path)).resolve() if url.path else path
    if target.is_dir():
        target /= "index.html"
    if site not in target.parents or not target.is_file():
        return "does not exist"
    anchor = unquote(url.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return f"has no anchor #{anchor}"
    return ""


def check(site: Path) -> tuple[str, list[str]]:
    """Returns a summary, and the errors."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    errors, count = [], 0
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in sorted(page.links | page.loaded):
            count += 1
            if reason := problem_of(site, pages, path, link):
                errors.append(f"{name}: {link} {reason}")
        errors += [f"{name}: loads {link} from another site"
                   for link in sorted(page.loaded) if urlsplit(link).netloc]
    return f"{len(pages)} pages, {count} links, {len(errors)} errors", errors


def main() -> int:
    summary, errors = check(Path(sys.argv[1]).resolve())
    print("\n".join([*errors, summary]))
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
