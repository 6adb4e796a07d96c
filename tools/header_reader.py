# SPDX-License-Identifier: BSD-3-Clause
"""Reads the declarations of a public header with their comments.

Expects headers as formatted by clang-format, with the structure of
docs/architecture.md: a head of prose before #pragma once, `///` before a
declaration, and one comment for all declarations that follow it without a blank
line. Omits private and deleted declarations, friends and overrides without a
comment, forward declarations and the namespace detail.
"""
import re
from dataclasses import dataclass, field

TEMPLATE = r"(?:template <[^;{]*>\s*)?"
TYPE = re.compile(rf"^{TEMPLATE}(class|struct|enum class|enum|union)\s+(\w+)")
DETAIL = re.compile(r"^namespace (\w+::)*detail$")
ACCESS = re.compile(r"^(public|protected|private):")
MACRO = re.compile(r"[A-Z][A-Z_]+\(.*\)", re.S)  # without a semicolon
SKIPPED = re.compile(r"= delete;|^class \w+;|^struct \w+;|^using Base\b|^FORWARD_HAS")


@dataclass
class Declaration:
    """One entity, or several with one comment: their texts without bodies."""

    doc: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    kind: str = ""  # class, struct, enum class, or empty
    name: str = ""
    members: list["Declaration"] = field(default_factory=list)
    access: str = "public"
    is_note: bool = False  # a standalone comment

    def names(self) -> list[str]:
        """Returns the names of all declared entities, each once."""
        found = [self.name] if self.kind else [name_of(t) for t in self.texts]
        return list(dict.fromkeys(found))


class Reader:
    """A position in a text."""

    def __init__(self, text: str):
        self.text = text
        self.at = 0

    def line(self) -> str:
        end = self.text.find("\n", self.at)
        return self.text[self.at : len(self.text) if end < 0 else end]

    def skip_line(self) -> str:
        line = self.line()
        self.at += len(line) + 1
        return line.strip()

    def closing(self, at: int) -> int:
        """Returns the position behind the bracket that closes the one at `at`."""
        depth = 0
        while at < len(self.text):
            at = self.behind_literal(at)
            depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(self.text[at], 0)
            at += 1
            if depth == 0:
                return at
        raise ValueError(f"unclosed bracket: {self.line()}")

    def behind_literal(self, at: int) -> int:
        """Returns `at`, or the position behind the literals and comments that
        begin there."""
        literal = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|//[^\n]*\n')
        while match := literal.match(self.text, at):
            at = match.end()
        return at

    def directive(self) -> str:
        lines = [self.skip_line()]
        while lines[-1].endswith("\\"):
            lines.append(self.skip_line())
        return " ".join(line.rstrip("\\ ") for line in lines)

    def declaration(self) -> tuple[str, int | None]:
        """Returns the text up to a `;` or a body, without the body, and the
        position of a type's body."""
        begin = at = self.at
        while True:
            at = self.behind_literal(at)
            char = self.text[at]
            if char == ";":
                self.at = at + 1
                return self.text[begin : self.at], None
            if char == "(":
                at = self.closing(at)
                if MACRO.fullmatch(self.text[begin:at]) and self.text[at] == "\n":
                    self.at = at
                    return self.text[begin:at], None
            elif char != "{":
                at += 1
            elif self.opens_requires(self.text[begin:at]) or self.opens_value(
                self.text[begin:at]
            ):
                at = self.closing(at)
            else:
                self.at = at
                return self.text[begin:at].rstrip(), at

    @staticmethod
    def opens_requires(before: str) -> bool:
        return bool(re.search(r"requires requires\s*(\(.*\))?\s*$", before, re.S))

    @staticmethod
    def opens_value(before: str) -> bool:
        """Returns true if { begins an initializer, not the body of a function
        or type."""
        before = before.rstrip()
        if TYPE.match(before) or before.startswith(("namespace", "extern")):
            return False
        is_constructor = re.search(r"\)\s*:\s*\w", before)
        body = before.endswith((")", "const", "override", "noexcept", "final"))
        return not body and not (is_constructor and before.endswith("}"))


def is_trivial(text: str, documented: bool) -> bool:
    flat = " ".join(text.split())
    if SKIPPED.search(flat) or flat.startswith("friend class"):
        return True
    hidden = flat.startswith("friend") or "override" in flat.split("(")[-1]
    lifetime = re.match(r"(virtual )?~|explicit \w+\(std::shared_ptr<const detail", flat)
    return not documented and bool(hidden or lifetime)


def name_of(text: str) -> str:
    flat = " ".join(re.sub(r"\[\[\w+\]\]", "", text).split())
    if match := re.match(r"#define (\w+)|[A-Z][A-Z_]+\((\w+)", flat):
        return match[1] or match[2]  # TORCH_MODULE(Name) declares Name
    if match := TYPE.match(flat.replace("DTENSOR_API ", "")):
        return match[2]
    if match := re.match(r"using (\w+)", flat):
        return match[1]
    flat = re.sub(r"^template <.*?> (?=\w)", "", flat)
    if match := re.search(r"operator\s*[^\s(\w]+|operator\(\)", flat):
        return match[0]
    head = flat.split("(")[0] if "(" in flat.split(" = ")[0] else re.split(r"[={;]", flat)[0]
    return re.findall(r"[\w:~]+", head)[-1].split("::")[-1]


def shown(text: str, indent: int) -> str:
    """Returns a declaration for display: without export macro and constructor
    initializers."""
    text = re.sub(r"DTENSOR_API\s", "", text)
    text = re.sub(r"\)\s*:\s+\w+[({].*$", ")", text, flags=re.S)
    text = re.sub(rf"(?m)^ {{{indent}}}", "", text).strip()
    return text if text.startswith("#") or text.endswith(";") else text + ";"


class HeaderReader(Reader):
    """Reads the declarations of a header."""

    def read(self) -> list[Declaration]:
        self.at = self.text.index("#pragma once") + len("#pragma once")
        return self.scope(len(self.text), "public")

    def scope(self, end: int, access: str) -> list[Declaration]:
        """Reads the declarations up to `end`. A comment belongs to the
        declarations that follow it, up to a blank line."""
        found: list[Declaration] = []
        doc: list[str] = []
        note: list[str] = []
        self.joins = False
        while self.at < end:
            line = self.line().strip()
            if not line:
                if note:
                    found.append(Declaration(note, access=access, is_note=True))
                doc, note, self.joins = [], [], False
                self.skip_line()
            elif line.startswith("///"):
                doc.append(self.skip_line()[3:].removeprefix(" "))
                self.joins = False
            elif line.startswith("//"):
                note.append(self.skip_line()[2:].removeprefix(" "))
            elif line.startswith("#"):
                text = self.directive()
                if text.startswith("#define") and "DTENSOR_API" not in text:
                    self.add(found, doc, text, access)
                doc, note = [], []
            elif match := ACCESS.match(line):
                access, doc, self.joins = match[1], [], False
                self.skip_line()
            else:
                self.item(found, doc, access)
                doc, note = [], []
        return found

    def item(self, found, doc: list[str], access: str) -> None:
        indent = len(self.line()) - len(self.line().lstrip())
        self.at += indent
        text, body = self.declaration()
        flat = " ".join(text.replace("DTENSOR_API ", "").split())
        comment = []
        if body is None:
            comment = self.rest_of_line()
        else:
            end = self.closing(body)
            if flat.startswith("namespace"):
                self.at = body + 1
                inner = self.scope(end - 1, "public")
                found += [] if DETAIL.match(flat) or "torch::nn" in flat else inner
            elif match := TYPE.match(flat):
                found.append(self.type_of(doc, flat, match, (body, end), access))
            self.at = end
            self.rest_of_line()
            if TYPE.match(flat) or flat.startswith("namespace"):
                self.joins = False
                return
        if not is_trivial(text, bool(doc)):
            self.add(found, doc or comment, shown(text, indent), access)
            self.joins = not comment

    def type_of(self, doc, flat: str, match, span, access: str) -> Declaration:
        body, end = span
        item = Declaration(doc, [flat + ";"], match[1], match[2], [], access)
        if match[1].startswith("enum"):
            values = self.text[body:end]
            item.texts = [f"{flat} {values};"]
            return item
        self.at = body + 1
        inner = "private" if match[1] == "class" else "public"
        members = self.scope(end - 1, inner)
        item.members = [m for m in members if m.access != "private"]
        return item

    def rest_of_line(self) -> list[str]:
        """Skips the rest of the line: a comment behind a `;` belongs to the
        declaration before it."""
        rest = self.skip_line()
        return [rest.lstrip("; ")[2:].strip()] if "//" in rest else []

    def add(self, found, doc: list[str], text: str, access: str) -> None:
        last = found[-1] if found else Declaration(access="")
        if self.joins and not doc and last.access == access and not last.kind:
            last.texts.append(text)
        else:
            found.append(Declaration(doc, [text], "", name_of(text), [], access))
        self.joins = True


def head_of(text: str) -> list[str]:
    """Returns the lines of prose before #pragma once, without the licence."""
    lines = text[: text.index("#pragma once")].split("\n")[1:]
    return [line[2:].removeprefix(" ") for line in lines if line.startswith("//")]
