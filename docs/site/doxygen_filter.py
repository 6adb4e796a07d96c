#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Prints a public header with its comments in Doxygen's form.

The headers have fewer marks than Doxygen needs:
- The prose before #pragma once describes the file. A class that it names may
  lack a comment.
- One comment documents all declarations that follow it without a blank line.
- A comment behind a declaration (`int n; // ranks`) documents it.
- Indented lines of a comment are code, all other text is prose with `names`.
- Fields and constructors may lack a comment.

Leaves out specializations, and overrides, friends and destructors without a comment.
"""
import re
import sys

SCOPE = re.compile(r"(?:template <.*> )?(namespace|class|struct|union|extern)\b(?!.*;$).*\{$")
FORWARD = re.compile(r"(?:class|struct) \w+;$")
TRIVIAL = re.compile(
    r"friend\b|(?:virtual )?~|using Base\b|FORWARD_HAS"
    r"|explicit \w+\(std::shared_ptr<const detail")
MACRO = re.compile(r"[A-Z][A-Z_]+\(.*\)")  # without a semicolon
FIELD = re.compile(r"(?!using|typedef|enum|template)[^(]*;$")
EMPTY = "&zwj;"  # a comment that shows nothing; declarations.py removes it
LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'')


# --- comments ----------------------------------------------------------------


def escaped(text: str) -> str:
    """Escapes Doxygen's commands in prose, but not in `code`. Errors and
    Python's name begin a paragraph."""
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([@\\<#%*|])", r"\\\1", parts[i])
    return re.sub(r"(?<=[.:)])[ \n](?=Throws |Python: )", "\n\n", "".join(parts))


def language_of(code: list[str]) -> str:
    return ".cpp" if re.search(r"[;{}]\s*(//.*)?$", "\n".join(code), re.M) else ".txt"


def converted(lines: list[str]) -> list[str]:
    """Returns the lines of a comment in Doxygen's Markdown."""
    out: list[str] = []
    prose: list[str] = []
    code: list[str] = []

    def flush():
        if prose:
            out.extend(escaped("\n".join(prose)).split("\n"))
            prose.clear()
        while code and not code[-1]:
            code.pop()
        if code:
            least = min(len(c) - len(c.lstrip()) for c in code if c)
            out.extend([f"@code{{{language_of(code)}}}", *(c[least:] for c in code), "@endcode"])
            code.clear()

    in_item = False
    for line in lines:
        if line.startswith("- "):
            in_item = True
        elif not line.startswith(" ") and line:
            in_item = False
        is_code = line.startswith("  ") and not (in_item and not line.startswith("   "))
        if is_code or (code and not line):
            if prose:
                flush()
            code.append(line)
            continue
        if code:
            flush()
            out.append("")
        prose.append(line)
    flush()
    return out


def written(lines: list[str], indent: str = "", first: str = "") -> list[str]:
    """Returns a comment as `///` lines."""
    lines = ([first] if first else []) + converted(lines)
    lines = "\n".join(lines).split("\n")
    return [f"{indent}/// {line}".rstrip() for line in lines]


# --- declarations ------------------------------------------------------------


def bare(line: str) -> str:
    """Returns a line of code without literals and comments."""
    return re.sub(r"\s*//.*", "", LITERAL.sub("0", line)).rstrip()


def is_complete(text: str) -> bool:
    if MACRO.fullmatch(text):
        return True
    depth = sum(text.count(c) for c in "({[") - sum(text.count(c) for c in ")}]")
    return depth == 0 and text.endswith((";", "}"))


def declarators(text: str) -> list[str]:
    """Splits `int a{0}, b;` into `int a{0};` and `int b;`."""
    depth, parts = 0, [""]
    for char in text.removesuffix(";"):
        depth += (char in "<({[") - (char in ">)}]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    declared = re.match(r"(.*[\s&*])\w+(?:\{.*\}| = .*)?$", parts[0])
    if not declared:
        return [text]
    return [f"{parts[0]};", *(f"{declared[1]}{part.strip()};" for part in parts[1:])]


class Filter:
    def __init__(self, head: list[str]):
        self.head = head
        self.out: list[str] = []
        self.continues = False  # the next `//` line belongs to the one before
        self.scopes: list[str] = []  # names of the open classes, "" for namespaces
        self.own: list[str] | None = None  # comment above the next declaration
        self.shared: list[str] | None = None  # comment of the one before

    def add(self, lines: list[str]) -> None:
        """Prints one declaration."""
        text = " ".join(bare(line).strip() for line in lines).replace("DTENSOR_API ", "")
        behind = re.search(r"\s*// (.*)$", LITERAL.sub("0", lines[-1]))
        indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        hidden = TRIVIAL.match(text) or "override" in text.split("(")[-1].split("{")[0]
        never = FORWARD.match(text) or "= delete;" in text or text.startswith("template <>")
        if never or (hidden and not self.own):
            self.own = None
            return
        if text.startswith("enum"):
            lines = [re.sub(r"(?<=[\w,])\s+// |(?<=^)\s+// ", " ///< ", line) for line in lines]
        elif behind and not self.own:
            lines = [*lines[:-1], re.sub(r"(?<=;)\s+// ", " ///< ", lines[-1])]
            self.out += lines
            self.shared, self.continues = None, True
            return
        doc = self.own or self.shared
        marked = written(doc, indent) if doc else []
        if not doc and self.may_lack_comment(text):
            marked = [f"{indent}/// {EMPTY}"]
        separate = declarators(text) if FIELD.match(text) else []
        if len(separate) > 1:
            self.out += [line for one in separate for line in [*marked, indent + one]]
        else:
            self.out += [*marked, *lines]
        self.own, self.shared = None, doc

    def may_lack_comment(self, text: str) -> bool:
        """Returns true for a field or a constructor of a class."""
        inside = self.scopes[-1] if self.scopes else ""
        constructor = re.match(rf"(?:template <.*> )?(?:constexpr |explicit )*{inside}\(", text)
        return bool(inside and (FIELD.match(text) or constructor))

    def open(self, lines: list[str]) -> None:
        """Prints the first lines of a class or namespace."""
        text = " ".join(bare(line).strip() for line in lines).replace("DTENSOR_API ", "")
        name = re.search(r"^(?:template <.*> )?(?:class|struct) (\w+)", text)
        self.scopes.append(name[1] if name else "")
        if not self.own and name and re.search(rf"\b{name[1]}\b", "\n".join(self.head)):
            self.out.append(f"/// {EMPTY}")
        if self.own:
            self.out += written(self.own)
        self.out += lines
        self.own = self.shared = None

    def read(self, lines: list[str]) -> list[str]:
        pending: list[str] = []
        for line in lines:
            code = line.strip()
            if pending or not self.is_outside(line, code):
                pending.append(line)
                text = " ".join(bare(p).strip() for p in pending).strip()
                if SCOPE.match(text) and text.count("{") - text.count("}") == 1:
                    self.open(pending)
                    pending = []
                elif is_complete(text):
                    self.add(pending)
                    pending = []
        return self.out

    def is_outside(self, line: str, code: str) -> bool:
        """Handles a line that is no declaration."""
        self.continues = self.continues and code.startswith("// ")
        if code.startswith("///"):
            self.own = [*(self.own or []), code[3:].removeprefix(" ")]
            self.shared = None
        elif not code or re.match(r"(public|protected|private):|\}", code):
            self.own = self.shared = None
            self.out.append(line)
            if code.startswith("}"):
                self.scopes.pop()
        elif code.startswith("#define") and (self.own or self.shared):
            self.shared = self.own or self.shared
            self.out += [*written(self.shared), line]
            self.own = None
        elif code.startswith("// ") and self.continues:
            self.out.append(f"///< {code[3:]}")
        elif code.startswith(("//", "#")) or self.out[-1:] and self.out[-1].endswith("\\"):
            self.out.append(line)
        else:
            return False
        return True


def main() -> None:
    lines = open(sys.argv[1]).read().split("\n")
    pragma = lines.index("#pragma once")
    head = [line[2:].removeprefix(" ") for line in lines[1:pragma]]
    about = written(head, first="@file")
    print("\n".join([*about, *Filter(head).read(lines[pragma:])]))


if __name__ == "__main__":
    main()
