#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that a layer includes and declares only lower layers, and that a room
(a folder with stricter rules) includes only permitted headers.

Reads every source under dtensor/. Compares its `#include <dtensor/...>` lines
and its forward declarations of classes with LAYERS, the table that
docs/architecture.md explains. ROOMS lists folders with stricter rules, for all
their includes, and UNFIT for their text, because the precompiled header makes
names available without an include. LISTED has patterns that are allowed only in
some files, with reasons. Prints one line per violation, and exits with 1 if there
is a violation.
"""

import re
import sys
from fnmatch import fnmatch
from pathlib import Path

# Layers from the bottom. A folder may include itself and the folders before it.
LAYERS = [
    "",
    "layout",
    "comm",
    "redistribute",
    "tensor",
    "random",
    "ops",
    "parallel",
    "data_parallel",
    "deferred",
    "weights",
    "checkpoint",
    "program",
]
# Leaves may include the layers up to the last of dtensor::core. No layer and no
# other leaf includes them.
LEAVES = ["debug"]
TOP_OF_CORE = "parallel"
# A separate target above the library: it includes all, and no other folder
# includes it.
TESTING = "testing"
# Modules: separate targets above the library, one per folder. Each includes its
# own headers and public ones of the library, and nothing includes it. They show
# that programs can do the same.
CONTRIB = "contrib"
# The world of threads is one implementation of several. Only itself, the world
# of several processes with threads, and tests may name it.
THREADS = "dtensor/comm/threads/"
HYBRID = "dtensor/comm/hybrid/"
# The modules linked with an MPI.
MPI = "dtensor/contrib/mpi/"
# Header that includes every public header of the library.
UMBRELLA = "dtensor/dtensor.h"
KNOWN = {*LAYERS, *LEAVES, TESTING, CONTRIB}
# Rooms: other includes that the files of a folder may have besides the standard
# library. Rules are pure: they use layouts, the descriptions of calls and rules,
# and modelled times. They see only declarations of kernels, and no operators,
# autograd or dispatch of LibTorch. Boundaries use the layers below ops, and not
# the operators that apply them.
ROOMS = {
    "dtensor/ops/rules/": re.compile(
        r"dtensor/(error\.h|layout/\w+\.h|ops/rules/\w+\.h|"
        r"ops/(dim_map|einsum|families_impl|op_call|registry|shard_cost_impl|strategy|traits)\.h|"
        r"ops/kernels/(local|index)_kernels_impl\.h)|"
        r"c10/(core|util)/\w+\.h|ATen/core/\w+\.h|ATen/ExpandUtils\.h|\w+"
    ),
    "dtensor/ops/boundary/": re.compile(
        r"dtensor/(\w+\.h|comm/\w+/\w+\.h|(layout|comm|redistribute|tensor)/\w+\.h|"
        r"ops/(boundary/\w+|traits)\.h)|(ATen|c10|torch)/[\w/]+\.h|\w+"
    ),
}
# Names that the text of these folders must not contain. A call of a name in
# at:: is an operator, unless it is a helper for shapes and types.
UNFIT = {
    "dtensor/ops/rules/": re.compile(
        r"\b(Dispatcher|callBoxed|\w*autograd\w*|at::(?!(?:IntArrayRef|are_expandable|infer_size|"
        r"is_expandable_to|isComplexType|isFloatingType|isIntegralType)\b)\w+(?=\s*\())"
    ),
    # The library's internals.
    "dtensor/contrib/": re.compile(r"\b(detail::|namespace detail)"),
}
# Patterns that are allowed only in some files: the pattern, then each file or
# folder and the reason. docs/architecture.md summarizes the first list.
LISTED = {
    "an operator by name": (
        re.compile(
            r"\"aten::\w|\btorch\.ops\.aten\.\w|\bat::_ops::\w|\w+Backward0\"|"
            r"\.impl\(\s*\"\w"
        ),
        {
            "contrib/torchscript/read_script.cpp": "modules, and questions about a tensor",
            "contrib/torchscript/script_modules.cpp": "modules that a script calls",
            "debug/comm_report.cpp": "views that a log leaves out",
            "debug/loss_watch.cpp": "ones_like, which backward() calls",
            "deferred/deferred_init.cpp": "factories of a tape",
            "deferred/play.cpp": "factories of a tape",
            "deferred/tape.cpp": "factories of a tape",
            "ops/path/in_backward.cpp": "the node of written views",
            "ops/install/install.cpp": "_to_copy to meta, and what set_data() begins with",
            "ops/install/kernels.cpp": "_foreach_, and _to_copy to meta",
            "ops/kernels/*": "beside the kernels of a family",
            "ops/install/plain_gradient.cpp": "cat, unboxed",
            "parallel/attention/context_attention.cpp": "attention in a scope",
            "program/find_linears.cpp": "products that export decomposes, and calls of modules",
            "program/module_tree.cpp": "modules that a graph calls",
            "program/read_calls.cpp": "a check that export writes",
            "program/scalar_functions.cpp": "what graphs compute of sizes",
            "tensor/inner_nodes.cpp": "nodes of products",
        },
    ),
    "a thread_local": (
        re.compile(r"\bthread_local\b"),
        {
            "comm/backend/rank_notes.cpp": "follows the calls: the tensor that is noted",
            "comm/backend/checked_backend.cpp": "follows the calls: observed operators",
            "comm/collective_timeout.cpp": "follows the calls: how long they wait",
            "comm/rank/draw_kernels.cpp": "follows the calls: what must not draw, and by what",
            "comm/rank/rank_local.cpp": "the state of a thread that is not a rank",
            "comm/rank/rank_local_impl.h": "which rank the thread is",
            "comm/group/operator_errors.cpp": "follows the calls: errors",
            "comm/group/operator_errors_impl.h": "follows the calls: errors",
            "comm/group/redistribution_scope_impl.h": "follows the calls: the innermost",
            "comm/spin.cpp": "saves time: until when not to yield the core",
            "comm/threads/exit_guard.cpp": "whether exit() begins in a rank's function",
            "comm/world.cpp": "which rank the thread is",
            "deferred/deferred_init.cpp": "the tape of a scope, which is a thread's",
            "layout/spec.cpp": "saves time: recent specs",
            "ops/path/decide.cpp": "saves time: decisions follow from their keys",
            "ops/path/with_boundary_impl.h": "follows the calls: the boundary applied",
            "tensor/pooled_impl.h": "saves memory: a free list",
        },
    ),
}
# A DTensor has a slot for data of parallel styles, which it does not access.
SLOTS = {"dtensor/tensor/meta_impl.h": {"Boundaries"}}

INCLUDE = re.compile(r'^\s*#\s*include\s*(<|")([^>"]+)[>"]')
FORWARD = re.compile(r"^\s*(?:class|struct)\s+(\w+);")
DEFINITION = re.compile(
    r"^\s*(?:class|struct)\s+(?:DTENSOR_API\s+)?(\w+)(?:\s+final)?\s*(?::[^:;]|\{)",
    re.M,
)


def layer_of(path: str) -> str:
    """dtensor/ops/rules/matmul.cpp -> ops; dtensor/error.h -> ''."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else ""


def allowed(source: str, target: str) -> bool:
    """Returns true if a file of folder `source` may include one of folder
    `target`."""
    if source == target or source in (TESTING, CONTRIB):
        return target != CONTRIB or source == target
    if target in LEAVES or target in (TESTING, CONTRIB):
        return False
    if source in LEAVES:
        source = TOP_OF_CORE
    return LAYERS.index(target) <= LAYERS.index(source)


def may_enter(name: str, target: str) -> bool:
    """Returns true if the room of file `name` allows it to include `target`."""
    rooms = [allow for folder, allow in ROOMS.items() if name.startswith(folder)]
    return all(allow.fullmatch(target) for allow in rooms)


def crosses_module(name: str, target: str) -> bool:
    """Returns true if a module's file `name` includes an internal header, or a
    header of another module or of the tests' helpers."""
    if layer_of(name) != CONTRIB or target.startswith(name.rpartition("/")[0] + "/"):
        return False
    return target.endswith("_impl.h") or layer_of(target) in (CONTRIB, TESTING)


def check_include(name: str, quote: str, target: str) -> str:
    """Returns the problem with the include, or an empty text."""
    source, folder = layer_of(name), layer_of(target)
    if quote == '"':
        return f'write <dtensor/...>, not "{target}"'
    if target == UMBRELLA:
        return "the library never includes its umbrella"
    if not may_enter(name, target):
        return f"{name.rpartition('/')[0]} may not include {target}"
    if target == "mpi.h" and not name.startswith(MPI):
        return f"only {MPI} may include {target}"
    if not target.startswith("dtensor/") or name == UMBRELLA:
        return ""
    if crosses_module(name, target):
        return f"a module includes only public headers of the library, not {target}"
    if folder not in KNOWN or not allowed(source, folder):
        return f"'{source}' may not include {target}"
    inside = name.startswith((THREADS, HYBRID)) or source == TESTING
    if target.startswith(THREADS) and not inside:
        return f"only {THREADS} may include {target}"
    return ""


def check_forward(name: str, declared: str, layers: set[str]) -> str:
    """Returns the problem with declaring a class that these layers define."""
    here = layer_of(name)
    slot = declared in SLOTS.get(name, set())
    if slot or not layers or any(allowed(here, layer) for layer in layers):
        return ""
    return f"'{here}' may not declare {declared}, which belongs to {', '.join(layers)}"


def without_comments(text: str) -> str:
    """Returns the lines without comments. A URL in a string is removed too."""
    return re.sub(r"//.*", "", text)


def line_of(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def check_text(name: str, text: str) -> list[str]:
    """Finds names in the file that its room must not use."""
    code = without_comments(text)
    return [
        f"{name}:{line_of(code, match.start())}: {folder} may not mention {match[0]}"
        for folder, unfit in UNFIT.items()
        if name.startswith(folder)
        for match in unfit.finditer(code)
    ]


def check_listed(files: dict[str, str]) -> list[str]:
    """Finds patterns in files that are not listed for them, and listed files
    without the pattern."""
    errors = []
    for what, (pattern, listed) in LISTED.items():
        unseen = set(listed)
        for name, text in files.items():
            code = without_comments(text)
            match = pattern.search(code)
            if match is None or layer_of(name) == TESTING:
                continue
            inside = name.removeprefix("dtensor/")
            places = {place for place in listed if fnmatch(inside, place)}
            unseen -= places
            if not places:
                line = line_of(code, match.start())
                errors.append(f"{name}:{line}: {what} is not allowed in this file ({match[0]})")
        errors += [f"tools/check_layers.py: dtensor/{place} no longer has {what}"
                   for place in sorted(unseen)]
    return errors


def sources(root: Path) -> dict[str, str]:
    return {
        file.relative_to(root).as_posix(): file.read_text()
        for file in sorted((root / "dtensor").rglob("*"))
        if file.suffix in (".h", ".cpp")
    }


def check(files: dict[str, str]) -> list[str]:
    defined: dict[str, set[str]] = {}
    for name, text in files.items():
        for declared in DEFINITION.findall(text):
            defined.setdefault(declared, set()).add(layer_of(name))
    errors = check_listed(files)
    for name, text in files.items():
        if layer_of(name) not in KNOWN:
            errors.append(f"{name}:1: folder '{layer_of(name)}' does not belong to a layer")
            continue
        errors += check_text(name, text)
        for number, line in enumerate(text.splitlines(), 1):
            wrong = ""
            if match := INCLUDE.match(line):
                wrong = check_include(name, *match.groups())
            elif match := FORWARD.match(line):
                wrong = check_forward(name, match[1], defined.get(match[1], set()))
            if wrong:
                errors.append(f"{name}:{number}: {wrong}")
    return errors


if __name__ == "__main__":
    found = check(sources(Path(__file__).resolve().parent.parent))
    print("\n".join(found) or "check_layers: all includes point to lower layers")
    sys.exit(bool(found))
