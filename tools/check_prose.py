#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the English of comments, error texts and documents (CONTRIBUTING.md).

A comment starts with a noun or a verb. At most LIMIT of all comments of at least
three words may start with a subordinate word such as "What" or "Whether". Code is
not a person: words such as "nobody" are not allowed anywhere. An error that Python
programs can cause too gives no advice in C++ alone: "from_local" instead of
"DTensor::from_local", "strict = false" instead of "strict=False", or both languages.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 0.03
OPENERS = {"what", "whether", "of", "those", "who", "how", "where", "which", "why",
           "that", "as", "by"}
PERSONS = re.compile(r"\b((?i:nobody|somebody|whoever|anew)|[Kk]in)\b")
FOLDERS = ["dtensor", "launcher", "tests", "examples", "benchmarks", "tools", "cmake",
           "docs", "python"]
EXEMPT = {"tools/check_prose.py", "tests/lints/lints_test.py"}  # list the words
MARK = {".h": "//", ".cpp": "//", ".py": "#", ".cmake": "#", ".sh": "#", ".txt": "#"}
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
# Adjacent literals, which C++ joins.
LITERALS = re.compile(rf"{STRING.pattern}(?:\s*{STRING.pattern})*")
# Layers of which the Python package uses everything but local_map, and spellings
# that only C++ has.
SHARED = tuple(f"dtensor/{layer}/" for layer in (
    "comm", "layout", "ops", "random", "redistribute", "tensor", "parallel/attention"))
CPP_ONLY = {"dtensor/tensor/local_map.cpp"}
SPELLING = re.compile(r"\b(?:at|c10|dtensor|std|torch|DTensor|\w+Options)::\w+|"
                      r"\bnullopt\b|\{\.\w+|\b\w+=(?:true|false|True|False)\b")
# A line that is a comment, and a comment after code.
LINE = {"//": re.compile(r"^\s*///?(?:\s(.*))?$"),
        "#": re.compile(r"^\s*#(?:\s(.*))?$")}
AFTER = {"//": re.compile(r"\S.*?\s///?\s(.+)$"),
         "#": re.compile(r"\S.*?\s\s#\s(.+)$")}


def comments(text: str, mark: str = "//") -> list[tuple[int, str]]:
    """Line number and text of each comment. Adjacent comment lines are one."""
    found, run = [], []
    for number, line in enumerate(text.splitlines() + [""], 1):
        match = LINE[mark].match(line)
        if match and "SPDX" not in line:
            run.append(match[1] or "")
            continue
        if run:
            found.append((number - len(run), " ".join(run)))
            run = []
        bare = STRING.sub(lambda quoted: "_" * len(quoted[0]), line)
        after = AFTER[mark].match(bare)
        if after and not match:
            found.append((number, line[after.start(1):]))
    return found


def opens_badly(comment: str) -> bool:
    words = re.findall(r"[A-Za-z']+", comment)
    return len(words) >= 3 and words[0].lower() in OPENERS


def is_sentence(comment: str) -> bool:
    return len(re.findall(r"[A-Za-z']+", comment)) >= 3


def persons(text: str) -> list[tuple[int, str]]:
    """Line number and word of each person that stands for code."""
    return [(number, match[0]) for number, line in enumerate(text.splitlines(), 1)
            for match in PERSONS.finditer(line)]


def check_openings(texts: dict[str, str]) -> list[str]:
    """Errors for all bad openings if their share is more than LIMIT."""
    count, bad = 0, []
    for name, text in texts.items():
        for number, comment in comments(text, MARK[Path(name).suffix]):
            count += is_sentence(comment)
            if opens_badly(comment):
                bad.append(f"{name}:{number}: start with a noun or a verb: "
                           f"{comment[:60]}")
    if len(bad) <= LIMIT * count:
        return []
    share = f"{len(bad)} of {count} comments start with a subordinate word, more " \
            f"than {LIMIT:.0%}"
    return bad + [share]


def check_persons(texts: dict[str, str]) -> list[str]:
    """Errors for each person, in comments, strings and documents."""
    errors = []
    for name, text in texts.items():
        for number, word in persons(text):
            errors.append(f'{name}:{number}: name the subject instead of "{word}"')
    return errors


def sentences(text: str) -> list[tuple[int, str]]:
    """Line number and text of each literal, joined, that has a full stop."""
    joined = [(text.count("\n", 0, match.start()) + 1,
               "".join(quoted[1:-1] for quoted in STRING.findall(match[0])))
              for match in LITERALS.finditer(text)]
    return [(number, literal) for number, literal in joined if "." in literal]


def check_languages(texts: dict[str, str]) -> list[str]:
    """Errors for each message with advice that only C++ programs can follow."""
    return [f'{name}:{number}: "{found[0]}" is C++: name the Python spelling, too'
            for name, text in texts.items()
            if name.startswith(SHARED) and name not in CPP_ONLY
            for number, literal in sentences(text)
            if " " in literal and "Python" not in literal
            and (found := SPELLING.search(literal))]


def read(suffixes: set[str]) -> dict[str, str]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    names = {path: str(path.relative_to(ROOT)) for path in sorted(files)
             if path.suffix in suffixes}
    return {name: path.read_text(errors="replace") for path, name in names.items()
            if name not in EXEMPT and not name.startswith("tests/fuzz/seeds/")}


def main() -> int:
    sources = read(set(MARK))
    golden = {name for name in sources if name.startswith("tests/golden/")}
    code = {name: text for name, text in sources.items() if name not in golden}
    errors = check_openings(code) + check_persons({**sources, **read({".md"})})
    errors += check_languages(code)
    print("\n".join(errors), file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
