#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Tests of tools/check_layers.py, tools/check_headers.py, tools/check_prose.py and
tools/check_workflows.py: constructed files that they must reject, and similar ones
that they must accept. Also tests the scripts of the documentation site in docs/site,
and that tools/mutations.py and the sanitizer's suppressions fit the sources."""

import re
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.dont_write_bytecode = True
sys.path[:0] = [str(TOOLS), str(TOOLS.parent / "docs/site")]

import check_headers  # noqa: E402
import check_layers  # noqa: E402
import check_links  # noqa: E402
import check_prose  # noqa: E402
import check_workflows  # noqa: E402
import doxygen_filter  # noqa: E402
import mutations  # noqa: E402

RULE = "dtensor/ops/rules/made_up.cpp"
TABLE = """// SPDX
//
// what                    where      test
// stock kernels           ops        StockKernels
//   computeStride         tensor, comm/made.cpp
// graphs                  all        the compiler
//   torch/csrc/jit
#pragma once
"""
SOURCES = {
    "dtensor/torch_internals.h": TABLE,
    "dtensor/ops/a.cpp": "at::detail::computeStride(a);\n",
    "dtensor/tensor/b.cpp": "at::detail::computeStride(b);\n",
    "dtensor/comm/made.cpp": "at::detail::computeStride(c);\n",
    "dtensor/layout/d.cpp": "#include <torch/csrc/jit/ir/ir.h>\n",
}
TESTS = "TEST(TorchInternals, StockKernels) {\n"
WORKFLOW = """name: ci
on: [push]
permissions:
  contents: read
concurrency:
  group: ci
jobs:
  test:
    timeout-minutes: 20
    steps:
      - uses: actions/checkout@v6
      - uses: ./.github/actions/prepare
      - run: make test | tee log
  docs:
    timeout-minutes: 20
    steps:
      - run: |
          make docs
"""
HEADERS = {
    "dtensor/layout/knot.h": "class Knot {\n  bool tie();\n};\nbool is_tied();\n",
    "dtensor/layout/rope.h": "int length();  // of which knots take some\n",
}


def source(*includes: str, body: str) -> str:
    lines = [f"#include <{header}>" for header in includes]
    return "\n".join(["// A source.", *lines, "namespace dtensor {", body, "}", ""])


def listed(name: str, text: str) -> list[str]:
    """Returns the findings, without those about missing files."""
    found = check_layers.check_listed({name: text})
    return [error for error in found if error.startswith(name)]


class Rules(unittest.TestCase):
    def refused(self, text: str) -> list[str]:
        return check_layers.check_text(RULE, text)

    def test_know_no_operators(self):
        for text in ("c10::Dispatcher::singleton()", "op.callBoxed(&stack);",
                     "torch::autograd::Node* n;", "auto t = at::add(a, b);",
                     "auto t = at::zeros (\n{2});"):
            self.assertEqual(len(self.refused("\n" + text)), 1, text)
            self.assertIn(f"{RULE}:2:", self.refused("\n" + text)[0])

    def test_know_shapes_and_types(self):
        for text in ("at::isFloatingType(t)", "at::IntArrayRef(sizes)", "at::kLong",
                     "at::infer_size(a, b)", "// the autograd of at::add(a)"):
            self.assertEqual(self.refused(text), [], text)

    def test_alone_are_held_to_it(self):
        self.assertEqual(
            check_layers.check_text("dtensor/ops/a.cpp", "op.callBoxed(s)"), [])


class Modules(unittest.TestCase):
    NAME = "dtensor/contrib/rope/knot.cpp"

    def refused(self, target: str, name: str = NAME) -> bool:
        return bool(check_layers.check_include(name, "<", target))

    def test_include_public_headers_and_their_own(self):
        for target in ("dtensor/parallel/style.h", "dtensor/debug/trace.h", "vector",
                       "dtensor/contrib/rope/knot_impl.h"):
            self.assertFalse(self.refused(target), target)

    def test_include_no_internals(self):
        for target in ("dtensor/parallel/plan/module_names_impl.h", "dtensor/contrib/yarn/a.h",
                       "dtensor/contrib/ropes/a.h", "dtensor/testing/expect.h",
                       "dtensor/dtensor.h"):
            self.assertTrue(self.refused(target), target)
        for text in ("detail::describe(t);", "namespace detail {"):
            self.assertEqual(len(check_layers.check_text(self.NAME, text)), 1, text)
        self.assertEqual(
            check_layers.check_text(self.NAME, "describe(t); // detail::describe"), [])

    def test_are_included_by_nothing(self):
        for name in ("dtensor/parallel/a.cpp", "dtensor/debug/a.cpp",
                     "dtensor/testing/a.cpp"):
            self.assertTrue(self.refused("dtensor/contrib/rope/knot.h", name), name)


class Listed(unittest.TestCase):
    def test_operators_have_names_in_some_files(self):
        for text in ('find("aten::mm", "")', "using Op = at::_ops::mm;",
                     'if (name == "MmBackward0") {}', 'm.impl(\n "mm", f)',
                     '"torch.ops.aten.mm.default"'):
            self.assertEqual(len(listed("dtensor/ops/path/dispatch.cpp", text)), 1, text)
            self.assertEqual(listed("dtensor/ops/kernels/norm.cpp", text), [], text)
            self.assertEqual(listed("dtensor/ops/install/plain_gradient.cpp", text), [], text)

    def test_comments_and_prefixes_are_no_names(self):
        for text in ('// "aten::mm"', 'name.starts_with("aten::")'):
            self.assertEqual(listed("dtensor/ops/path/dispatch.cpp", text), [], text)

    def test_thread_locals_are_in_some_files(self):
        text = "\nthread_local int depth = 0;"
        self.assertEqual(listed("dtensor/layout/spec.cpp", text), [])
        self.assertIn("mesh.cpp:2:", listed("dtensor/layout/mesh.cpp", text)[0])

    def test_no_entry_outlives_its_file(self):
        found = check_layers.check_listed({})
        for place in ("dtensor/layout/spec.cpp", "dtensor/ops/kernels/*"):
            self.assertTrue(any(place in error for error in found), place)


class Internals(unittest.TestCase):
    def found(self, changed: dict[str, str], tests: str = TESTS) -> list[str]:
        return check_headers.check_internals({**SOURCES, **changed}, tests)

    def test_may_be_used_where_the_table_says(self):
        self.assertEqual(self.found({}), [])

    def test_are_named_in_the_table(self):
        for text in ("at::detail::empty_cpu(s)", "queue_callback(f);",
                     "torch::autograd::impl::gradient_edge(t)",
                     "op.getComputedKernelForDispatchKey(k)",
                     "#include <torch/csrc/autograd/graph_task.h>",
                     "#include <caffe2/serialize/inline_container.h>",
                     'name == "torch::autograd::MmBackward0"'):
            self.assertEqual(len(self.found({"dtensor/ops/c.cpp": text})), 1, text)

    def test_are_used_nowhere_else(self):
        text = "at::detail::computeStride(d);"
        for name in ("dtensor/parallel/e.cpp", "dtensor/comm/e.cpp"):
            self.assertEqual(len(self.found({name: text})), 1, name)

    def test_are_still_used_there(self):
        for name in ("dtensor/tensor/b.cpp", "dtensor/comm/made.cpp"):
            self.assertEqual(len(self.found({name: "// computeStride\n"})), 1, name)

    def test_have_a_test(self):
        self.assertEqual(len(self.found({}, "")), 1)
        more = TESTS + "TEST(TorchInternals, Other) {\n"
        self.assertEqual(len(self.found({}, more)), 1)
        table = TABLE.replace("StockKernels", "View.*")
        suite = "TEST_P(View, NeverCopies) {\n"
        changed = {"dtensor/torch_internals.h": table}
        self.assertEqual(self.found(changed, suite), [])


class FirstIncludes(unittest.TestCase):
    def found(self, name: str, text: str) -> list[str]:
        return check_headers.check_first_include(name, {**HEADERS, name: text})

    def test_the_header_of_its_name(self):
        name, own = "dtensor/layout/knot.cpp", "dtensor/layout/knot.h"
        body = "bool is_tied() {\n  return true;\n}"
        self.assertEqual(self.found(name, source(own, "vector", body=body)), [])
        self.assertEqual(self.found(name, source("vector", own, body=body)), [
            f"{name}: the first include is vector and should be {own}"])

    def test_the_public_header_of_its_name_in_the_layer(self):
        name, own = "dtensor/parallel/rope/knot.cpp", "dtensor/parallel/knot.h"
        files = {own: "bool is_tied();", name: source("vector", body="int i;")}
        self.assertEqual(check_headers.check_first_include(name, files), [
            f"{name}: the first include is vector and should be {own}"])
        files[name] = source(own, "vector", body="int i;")
        self.assertEqual(check_headers.check_first_include(name, files), [])

    def test_one_idea_of_a_larger_header(self):
        name = "dtensor/layout/tie.cpp"
        body = "bool Knot::tie() {\n  return true;\n}"
        self.assertEqual(self.found(name, source("dtensor/layout/knot.h", body=body)), [])
        for other in ("dtensor/layout/rope.h", "vector"):
            self.assertEqual(self.found(name, source(other, body=body)), [
                f"{name}: the first include is {other} and should be "
                "a header that declares what it defines"])

    def test_what_a_comment_mentions_is_not_declared(self):
        body = "int knots() {\n  return 3;\n}"
        text = source("dtensor/layout/rope.h", body=body)
        self.assertEqual(len(self.found("dtensor/layout/count.cpp", text)), 1)

    def test_without_any_include(self):
        name = "dtensor/layout/tie.cpp"
        self.assertEqual(self.found(name, source(body="int tie() {\n  return 1;\n}")), [
            f"{name}: the first include is missing and should be "
            "a header that declares what it defines"])

    def test_a_source_that_registers_what_it_defines(self):
        body = ("namespace {\nint two() {\n  return 2;\n}\n} // namespace\n"
                "DTENSOR_RULES(knot) {\n  two();\n}")
        self.assertEqual(self.found("dtensor/ops/rules/knot.cpp", source(body=body)), [])


class Prose(unittest.TestCase):
    def test_comments_are_lines_and_what_follows_code(self):
        text = ("// SPDX-License-Identifier: X\n// One comment\n// of two lines.\n\n"
                'int n;  // Number of "// ranks"\nauto s = "// no comment here";\n')
        self.assertEqual(check_prose.comments(text), [
            (2, "One comment of two lines."), (5, 'Number of "// ranks"')])
        text = "x = 1  # A value here\n# Head of it\n"
        self.assertEqual(check_prose.comments(text, "#"),
                         [(1, "A value here"), (2, "Head of it")])

    def test_openings_are_counted_in_sentences(self):
        for text in ("What is sent in a round.", "whether it is sharded",
                     "Of a parameter alone."):
            self.assertTrue(check_prose.opens_badly(text), text)
        for text in ("Bytes sent per round.", "Returns whether it is sharded.",
                     "As before.", "Whatever the layout is."):
            self.assertFalse(check_prose.opens_badly(text), text)

    def test_a_small_share_of_bad_openings_passes(self):
        good = "".join(f"int a{i};  // Number of ranks {i}.\n" for i in range(99))
        bad = "int b;  // What is sent there.\n"
        self.assertEqual(check_prose.check_openings({"a.h": good + 3 * bad}), [])
        errors = check_prose.check_openings({"a.h": good + 4 * bad})
        self.assertEqual(len(errors), 5)
        self.assertIn("a.h:100: start with a noun or a verb: What is", errors[0])
        self.assertIn("4 of 103 comments", errors[-1])

    def test_code_is_no_person(self):
        text = "Ranks start.\nNobody waits anew.\n"
        errors = check_prose.check_persons({"a.md": text})
        self.assertEqual([e.split('"')[1] for e in errors], ["Nobody", "anew"])
        self.assertTrue(errors[0].startswith("a.md:2: name the subject"))
        self.assertEqual(check_prose.check_persons({"a.md": "A kind of skin."}), [])

    def test_advice_is_right_in_both_languages(self):
        def found(text: str, name: str = "dtensor/ops/a.cpp") -> list[str]:
            errors = check_prose.check_languages({name: "\n" + text})
            return [error.split('"')[1] for error in errors]

        text = 'check(a, "[a] it is plain. Use "\n  "DTensor::from_local.");'
        self.assertEqual(found(text), ["DTensor::from_local"])
        self.assertEqual(found('"Pass nullopt for it."'), ["nullopt"])
        self.assertEqual(found('"Set it (strict=False)."'), ["strict=False"])
        self.assertEqual(found(text, "dtensor/program/a.cpp"), [])
        for text in ('"Use from_local."', '"Set strict = false."',
                     '"Use dtensor::a (C++), b (Python)."', '"std::exception"'):
            self.assertEqual(found(text), [], text)


class Workflows(unittest.TestCase):
    def found(self, old: str, new: str) -> list[str]:
        text = WORKFLOW.replace(old, new)
        return [error.removeprefix("a.yml: ")
                for error in check_workflows.check_workflow("a.yml", text)
                + check_workflows.check_actions("a.yml", text)
                + check_workflows.check_targets("a.yml", text, ".PHONY: test docs\n")]

    def test_have_least_privileges_and_limits(self):
        self.assertEqual(self.found("", ""), [])
        wide = "permissions are not exactly contents: read"
        for old, new in (("contents: read", "contents: write"),
                         ("  contents: read\n", "  contents: read\n  packages: write\n"),
                         ("  test:\n", "  test:\n    permissions: write-all\n")):
            self.assertEqual(self.found(old, new), [wide], new)
        self.assertEqual(self.found("concurrency", "env"), ["has no concurrency group"])
        self.assertEqual(self.found("  docs:\n    timeout-minutes: 20\n", "  docs:\n"),
                         ["job docs has no timeout-minutes"])

    def test_pin_actions_to_major_versions(self):
        for name in ("actions/checkout@main", "actions/checkout", "actions/checkout@v6.1"):
            self.assertEqual(self.found("actions/checkout@v6", name),
                             [f"{name} is not pinned to a major version"])

    def test_call_targets_of_the_makefile(self):
        for target in ("test", "docs"):
            self.assertEqual(self.found(f"make {target}", "make rope"),
                             ["the Makefile has no target rope"])

    def test_the_container_has_what_setup_installs(self):
        setup = 'apt_install g++ \\\n  cmake "$@"\n  has && apt_install python3; fi\n'
        makefile = "\t@tools/setup.sh clang clang-tidy\n\t@tools/setup.sh --docs\n"
        container = "RUN apt-get install g++ cmake python3 clang clang-tidy \\\n"
        check = check_workflows.check_container
        self.assertEqual(check(container, setup, makefile), [])
        for package in ("g++", "cmake", "python3", "clang-tidy"):
            rest = container.replace(f" {package} ", " ")
            self.assertEqual(check(rest, setup, makefile), [
                f"packaging/Containerfile: does not install {package}"])


class Comments(unittest.TestCase):
    """Tests how docs/site/doxygen_filter.py marks comments for Doxygen."""

    def marked(self, *lines: str, head: str = "") -> list[str]:
        found = doxygen_filter.Filter([head]).read(list(lines))
        return [line.strip() for line in found if line]

    def test_one_comment_documents_all_declarations_up_to_a_blank_line(self):
        self.assertEqual(self.marked("/// Counts.", "int a();", "int b();", "", "int c();"), [
            "/// Counts.", "int a();", "/// Counts.", "int b();", "int c();"])

    def test_comments_behind_a_field(self):
        self.assertEqual(self.marked("struct S {", "int n;   // ranks", "// of a mesh", "};"), [
            "struct S {", "int n; ///< ranks", "///< of a mesh", "};"])

    def test_only_fields_and_constructors_may_lack_one(self):
        empty = f"/// {doxygen_filter.EMPTY}"
        self.assertEqual(
            self.marked("struct S {", "explicit S(int n);", "int a{0}, b;", "int f();", "};"),
            ["struct S {", empty, "explicit S(int n);", empty, "int a{0};", empty, "int b;",
             "int f();", "};"])
        self.assertEqual(self.marked("int a;"), ["int a;"])

    def test_the_head_documents_the_class_that_it_names(self):
        self.assertEqual(self.marked("class Knot {", "};", head="Knot: a loop."),
                         [f"/// {doxygen_filter.EMPTY}", "class Knot {", "};"])
        self.assertEqual(self.marked("class Knot {", "};"), ["class Knot {", "};"])

    def test_indented_lines_are_code_and_prose_has_no_commands(self):
        self.assertEqual(
            doxygen_filter.converted(["Splits `<T>` by <T>:", "", "  f(1);", "", "Throws #1."]),
            ["Splits `<T>` by \\<T>:", "", "@code{.cpp}", "f(1);", "@endcode", "",
             "Throws \\#1."])


class Links(unittest.TestCase):
    def errors(self, **pages: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder).resolve()
            for name, text in pages.items():
                (site / f"{name}.html").write_text(text)
            return check_links.check(site)[1]

    def test_pages_and_anchors_exist(self):
        self.assertEqual(self.errors(a='<a href="b.html#x">', b='<p id="x">'), [])
        self.assertEqual(self.errors(a='<a href="b.html#y">', b='<p id="x">'),
                         ["a.html: b.html#y has no anchor #y"])
        self.assertEqual(self.errors(a='<a href="c.html">'), ["a.html: c.html does not exist"])

    def test_nothing_is_loaded_from_another_site(self):
        self.assertEqual(self.errors(a='<a href="https://b.org">'), [])
        self.assertEqual(self.errors(a='<script src="https://b.org/x.js">'),
                         ["a.html: loads https://b.org/x.js from another site"])


class Mutations(unittest.TestCase):
    def test_each_replaces_one_piece_of_a_source(self):
        for name, mutation in mutations.MUTATIONS.items():
            with self.subTest(name):
                text = (mutations.ROOT / mutation.file).read_text()
                self.assertEqual(text.count(mutation.mend), 1)


class Suppressions(unittest.TestCase):
    def test_name_code_of_the_project_that_exists(self):
        root = TOOLS.parent
        sources = "\n".join(
            path.read_text() for folder in ("dtensor", "tests")
            for path in sorted((root / folder).rglob("*"))
            if path.suffix in (".h", ".cpp"))
        text = (root / "tests/tsan_suppressions.txt").read_text()
        names = re.findall(
            r"^mutex:dtensor::(?:[a-z]\w*::)*([A-Z]\w*(?:::\w+)?)$", text, re.M)
        self.assertTrue(names)
        for name in names:
            self.assertRegex(sources, rf"\b{name}\b")


if __name__ == "__main__":
    unittest.main()
