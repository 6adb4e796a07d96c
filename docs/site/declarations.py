# SPDX-License-Identifier: BSD-3-Clause
"""Extension of Sphinx that shows a header as it is written.

- `{header} dtensor/layout/mesh.h` shows the prose of the header, then its
  declarations in the order of the file.
- Declarations with one comment are one entry with several signatures.
- Names of headers and pages in comments are links.
"""
import re
from pathlib import Path

from breathe import parser
from breathe.directives import BaseDirective
from breathe.renderer import TaggedNode, filter
from breathe.renderer.mask import NullMaskFactory
from breathe.renderer.target import create_target_handler
from docutils import nodes
from sphinx import addnodes
from sphinx.domains.cpp import CPPDomain

ROOT = Path(__file__).resolve().parents[2]
EMPTY = "\N{ZERO WIDTH JOINER}"  # doxygen_filter.py writes it
NAMED = re.compile(r"\b(docs/[\w/]+\.md|(?:dtensor/)?\w+/\w+\.h)\b")
CLASSES = ("class", "struct", "union")
MEMBERS = {"members": "", "protected-members": None}


# --- the directive -----------------------------------------------------------


class Header(BaseDirective):
    required_arguments = 1
    option_spec = {}
    has_content = False
    entries: dict[str, list] = {}  # header -> (line, stack, filter, options)

    def run(self) -> list[nodes.Node]:
        self.project = self.project_info_factory.create_project_info(self.options)
        if not self.entries:
            self.read_index()
        path = self.arguments[0]
        for source in (path, "docs/site/doxygen_filter.py"):
            self.env.note_dependency(str(ROOT / source))
        if path not in self.entries:
            raise self.error(f"Doxygen has not read {path}")
        shown = []
        for _, stack, filter_, options in sorted(self.entries[path], key=lambda e: e[0]):
            target_handler = create_target_handler(options, self.env)
            arguments = self.directive_args
            arguments[2] = options
            shown += self.render(stack, self.project, filter_, target_handler,
                                 NullMaskFactory(), arguments)
        return shown

    def read_index(self) -> None:
        """Reads all of Doxygen's output, once for all pages."""
        index = self.get_doxygen_index(self.project)
        root = TaggedNode("doxygenindex", index.root)
        for compound in [c for group in index.compounds.values() for c in group]:
            kind = compound.kind.value
            is_nested = any(c.kind.value in CLASSES
                            for c in index.compounds.get(compound.name.rpartition("::")[0], []))
            if kind not in ("file", "namespace", *CLASSES) or is_nested:
                continue
            read = self.dox_parser.parse_compound(compound.refid, self.project)
            node = read.root.compounddef[0]
            stack = [TaggedNode("compound", compound), root]
            if kind == "file":
                self.add(node, 0, [TaggedNode(None, node)], is_prose)
            if kind in CLASSES:
                shown = filter.create_class_filter(self.app, compound.name, MEMBERS)
                self.add(node, node.location.line, stack, shown, MEMBERS)
            else:
                self.add_members(kind, read, stack)

    def add_members(self, kind: str, read, stack) -> None:
        for member, section, node in read.members_by_id.values():
            # A file lists the members of its namespaces, too.
            if kind == "namespace" or "::" not in (member.qualifiedname or ""):
                self.add(member, member.location.line, [
                    TaggedNode("memberdef", member), TaggedNode("sectiondef", section),
                    TaggedNode("compounddef", node), TaggedNode("doxygen", read.root), *stack])

    def add(self, node, line, stack, filter_=lambda stack: True, options={}) -> None:
        self.entries.setdefault(node.location.file, []).append((line, stack, filter_, options))


def is_prose(stack) -> bool:
    return not isinstance(stack.node, (parser.Node_sectiondefType, parser.Node_refType))


# --- changes of the result ---------------------------------------------------


def content_of(declaration: addnodes.desc) -> addnodes.desc_content | None:
    """Returns the comment of a declaration that has no members."""
    if declaration["objtype"] in (*CLASSES, "enum", "enum-class"):
        return None
    content = declaration.next_node(addnodes.desc_content)
    return content if content is not None and content.astext() else None


def following(node: nodes.Node) -> nodes.Node | None:
    """Returns the next sibling, not counting entries of the index."""
    after = node.parent.children[node.parent.index(node) + 1:]
    return next((n for n in after if not isinstance(n, addnodes.index)), None)


def merge(doctree: nodes.document) -> None:
    merged: list[addnodes.desc] = []
    for first in list(doctree.findall(addnodes.desc)):
        content = None if first in merged else content_of(first)
        while content is not None:
            second = following(first)
            other = content_of(second) if isinstance(second, addnodes.desc) else None
            if other is None or other.astext() != content.astext():
                break
            for signature in list(second.findall(addnodes.desc_signature)):
                first.insert(first.index(content), signature)
            second.parent.remove(second)
            merged.append(second)


def remove_noise(doctree: nodes.document) -> None:
    """Removes empty comments, and the namespace before names."""
    for paragraph in list(doctree.findall(nodes.paragraph)):
        if paragraph.astext().strip() == EMPTY:
            paragraph.parent.remove(paragraph)
    for name in list(doctree.findall(addnodes.desc_addname)):
        if name.astext() == "dtensor::":
            name.parent.remove(name)


def linked(app, docname: str, name: str) -> nodes.Node:
    """Returns a link to the page of a header or to a page, if there is one."""
    page = name.removesuffix(".md") if name.startswith("docs/") else name
    if name.endswith(".h") and not name.startswith("dtensor/"):
        page = f"dtensor/{name}"
    if page not in app.env.found_docs:
        return nodes.Text(name)
    uri = app.builder.get_relative_uri(docname, page)
    return nodes.reference("", name, refuri=uri, internal=True)


def on_resolved(app, doctree: nodes.document, docname: str) -> None:
    if not docname.startswith("dtensor/"):
        return
    for text in list(doctree.findall(nodes.Text)):
        parts = NAMED.split(text.astext())
        if len(parts) > 1 and isinstance(text.parent, nodes.paragraph):
            text.parent.replace(text, [
                linked(app, docname, part) if i % 2 else nodes.Text(part)
                for i, part in enumerate(parts) if part])


def on_missing(app, env, node, content) -> nodes.Node | None:
    """Resolves Doxygen's labels of headers, such as mesh__scope_8h, and of
    internal classes, which are shown without a link."""
    label = node["reftarget"]
    if "detail" in label:
        return content
    name = label.replace("__", "_").removesuffix("_8h") + ".h"
    pages = [page for page in env.found_docs if re.fullmatch(rf"dtensor/(.*/)?{name}", page)]
    return linked(app, node["refdoc"], pages[0]) if len(pages) == 1 else None


def on_read(app, doctree: nodes.document) -> None:
    if app.env.docname.startswith("dtensor/"):
        remove_noise(doctree)
        merge(doctree)


class Names(CPPDomain):
    """C++ without parameters among the results of a search."""

    def get_objects(self):
        return (found for found in super().get_objects() if not found[2].endswith("Param"))


def setup(app) -> dict:
    app.add_domain(Names, override=True)
    app.add_directive("header", Header)
    app.connect("doctree-read", on_read)
    app.connect("doctree-resolved", on_resolved)
    app.connect("missing-reference", on_missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
