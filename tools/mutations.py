#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Removes one fix at a time and expects a test to fail.

    tools/mutations.py --build build/dev              # all, one after the other
    tools/mutations.py --build build/dev complex-key  # that one

Each mutation replaces one piece of a source, which must occur exactly once. It
builds the test, runs it as `make test` does, and always restores the source. A
test that still passes is an error. The tool changes sources while it runs, so
use a separate checkout (`git worktree add`).
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Mutation:
    """A mutation: `test` must fail if `mend` is replaced by `without`."""

    file: str
    mend: str
    without: str
    test: str
    program: str = ""  # if not named as the test


MUTATIONS = {
    # The gradient of a gradient has the layout of the forward tensor.
    "second-derivatives": Mutation(
        "dtensor/tensor/layout_steps.cpp",
        "? to_local_autograd(placed, Placements(forward->placements()))",
        "? to_local_autograd(placed)",
        "second_derivatives",
    ),
    # Results shared by siblings belong to one version of their input.
    "sibling-sharing": Mutation(
        "dtensor/ops/boundary/shared_input.cpp",
        "version_ == version_of(x) &&",
        "(version_ == version_of(x) || true) &&",
        "programs",
    ),
    # A mean over ignored targets only has zero gradients.
    "ignored-targets": Mutation(
        "dtensor/ops/kernels/cross_entropy_local.cpp",
        "return at::where(t.ignored, 0, coefficient);",
        "return coefficient + at::where(t.ignored, 0, 0);",
        "second_derivatives",
    ),
    # A view that is a copy is out of date after its base was written.
    "copied-views": Mutation(
        "dtensor/tensor/copied_view.cpp",
        "copied == nullptr || !copied->is_written(),",
        "copied == nullptr || !copied->is_written() || true,",
        "programs",
    ),
    # Calls with different complex numbers have different cache keys.
    "complex-key": Mutation(
        "dtensor/ops/path/call_key.cpp",
        "add_to_key(key, value.toScalar(), matters);",
        "add_to_key(key, value.toScalar(), matters && !value.isComplexDouble());",
        "op_samples",
    ),
    # A view of a shard with a unit keeps whole units on a rank.
    "units-of-views": Mutation(
        "dtensor/ops/dim_map.cpp",
        "rows.unit = sharding.unit();",
        "rows.unit = 1;",
        "drawn_calls",
        program="op_samples",
    ),
}


def run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def last_words(text: str) -> str:
    """Returns the output of a test about its first different case."""
    lines = [line for line in text.splitlines() if "DIFFERENT" in line]
    return (lines or text.strip().splitlines() or [""])[0][:200]


def is_noticed(name: str, mutation: Mutation, build: Path) -> bool:
    source = ROOT / mutation.file
    text = source.read_text()
    found = text.count(mutation.mend)
    if found != 1:
        sys.exit(f"{mutation.file} contains {mutation.mend!r} {found} times, expected once")
    try:
        source.write_text(text.replace(mutation.mend, mutation.without))
        target = f"dtensor_{mutation.program or mutation.test}"
        built = run(["cmake", "--build", str(build), "--target", target])
        if built.returncode != 0:
            sys.exit(f"{name} does not build:\n{built.stdout[-4000:]}")
        tests = f"^randomized\\.{mutation.test}"
        test = ["ctest", "--test-dir", str(build), "-R", tests, "--output-on-failure"]
        tested = run(test)
    finally:
        source.write_text(text)
    noticed = tested.returncode != 0
    if "No tests were found" in tested.stdout + tested.stderr:
        sys.exit(f"{build} has no test {tests}")
    words = f"\n    {last_words(tested.stdout)}" if noticed else ""
    verb = "fails" if noticed else "PASSES"
    print(f"{name}: without it randomized.{mutation.test} {verb}{words}", flush=True)
    return noticed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MUTATIONS))
    parser.add_argument("--build", type=Path, default=ROOT / "build/dev")
    args = parser.parse_args()
    names = args.names or list(MUTATIONS)
    for name in names:
        if name not in MUTATIONS:
            parser.error(f"unknown mutation {name!r}. Choose from: {', '.join(MUTATIONS)}")
    build = args.build.resolve()
    missed = [n for n in names if not is_noticed(n, MUTATIONS[n], build)]
    if missed:
        print(f"not detected by any test: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
