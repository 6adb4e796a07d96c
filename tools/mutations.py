#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Removes one fix at a time and expects a test to fail.

    tools/mutations.py --build build/dev              # all, one after the other
    tools/mutations.py --build build/dev complex-key  # that one

Each mutation replaces one string of a source. The string must occur exactly
once. The tool builds the test, runs it, and always restores the source. A test
that still passes is an error. The tool changes sources while it runs, so use a
separate checkout (`git worktree add`).
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Mutation:
    """A mutation: `test` must fail if `mend` is replaced by `without`.

    `test` is the end of the name of a randomized test ("programs"), or a filter
    of GoogleTest ("Peers.*"), whose suite is `program` ("launching").
    """

    file: str
    mend: str
    without: str
    test: str
    program: str = ""  # of a randomized test: if not named as the test

    @property
    def is_gtest(self) -> bool:
        return "." in self.test

    @property
    def target(self) -> str:
        suffix = "_tests" if self.is_gtest else ""
        return f"dtensor_{self.program or self.test}{suffix}"

    @property
    def shown_test(self) -> str:
        return self.test if self.is_gtest else f"randomized.{self.test}"

    def command(self, build: Path) -> list[str]:
        if self.is_gtest:
            return [str(build / "tests" / self.target), f"--gtest_filter={self.test}"]
        tests = f"^randomized\\.{self.test}"
        return ["ctest", "--test-dir", str(build), "-R", tests, "--output-on-failure"]


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
    # Ranks that no seed was set for take the random state of rank 0.
    "unseeded-processes": Mutation(
        "dtensor/comm/processes/membership.cpp",
        "if (rendezvous.store != nullptr) {",
        "if (rendezvous.store != nullptr && env.size < 0) {",
        "Under/LaunchedDraws.AreAlikeOnAllRanksUnseeded/dtensor_run",
        "launched_random",
    ),
    # Gradients that wait for their reduction are added in a wider dtype.
    "waiting-gradients": Mutation(
        "dtensor/data_parallel/reduction.cpp",
        "c10::promoteTypes(local.value.scalar_type(), dtype));",
        "c10::promoteTypes(local.value.scalar_type(), at::kBFloat16));\n"
        "      static_cast<void>(dtype);",
        "Accumulation.OfUnitsIsInTheDtypeOfTheirSum",
        "data_parallel",
    ),
    # A plain number is no term of a sum over ranks.
    "plain-beside-partial": Mutation(
        "dtensor/ops/scopes/plain_operand.cpp",
        "is_dtensor(t) || !joins ||",
        "is_dtensor(t) || !joins || t.numel() == 1 ||",
        "PlainBesidePartial.IsRefusedInSums",
        "ops",
    ),
    # The alignment of a GGUF file is a power of two.
    "gguf-alignment": Mutation(
        "dtensor/weights/gguf.cpp",
        "if (!std::has_single_bit(value)) {",
        "if (value == 0) {",
        "HostileGguf.AlignmentIsAPowerOfTwo",
        "weights",
    ),
    # No rank waits for the report of a rank that has ended.
    "reports-of-the-dead": Mutation(
        "dtensor/comm/processes/peers.cpp",
        "return runs(rank) && !has_left(rank);",
        "return !has_left(rank);",
        "Peers.WaitForNoRankThatHasEnded",
        "launching",
    ),
    # The product of steps and a stride does not overflow.
    "strides": Mutation(
        "dtensor/weights/weight_contents.cpp",
        "steps - 1 > (kMostElements - last) / stride",
        "(steps - 1) * stride > kMostElements - last",
        "HostileArchive.StridesAndOffsetsThatOverflow",
        "weights",
    ),
    # JSON is read to a limited depth.
    "nested-json": Mutation(
        "dtensor/weights/json_document.cpp",
        "if (open_.size() >= max_depth_) {",
        "if (open_.size() >= max_depth_ + 1'000'000) {",
        "JsonDocument.RefusesTooManyLevels",
        "weights",
    ),
    # A flight record is a new file, and replaces a link.
    "links-of-records": Mutation(
        "dtensor/comm/processes/flight_record.cpp",
        "unlinkat(folder_.get(), name.c_str(), 0);\n"
        "  const Descriptor file(openat(\n"
        "      folder_.get(),\n"
        "      name.c_str(),\n"
        "      O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW |",
        "const Descriptor file(openat(\n"
        "      folder_.get(),\n"
        "      name.c_str(),\n"
        "      O_WRONLY | O_CREAT | O_TRUNC |",
        "FlightRecords.FollowNoLink",
        "launching",
    ),
    # A timeout is positive.
    "timeouts": Mutation(
        "dtensor/comm/processes/rendezvous.cpp",
        "options.timeout.count() > 0,",
        "options.timeout.count() != 1,",
        "HostilePeers.InvalidTimeouts",
        "launching",
    ),
    # Names in an index stay in its folder.
    "names-in-an-index": Mutation(
        "dtensor/weights/mapped_file.cpp",
        'std::ranges::find(path, "..") == path.end();',
        'std::ranges::find(path, "...") == path.end();',
        "HostileSafetensors.NamesInAnIndexStayInItsFolder",
        "weights",
    ),
    # A key of a GGUF file occurs once.
    "gguf-keys": Mutation(
        "dtensor/weights/gguf.cpp",
        "if (metadata.count(key) > 0) {",
        "if (metadata.count(key) > 1) {",
        "HostileGguf.DuplicateKeysAreRefused",
        "weights",
    ),
    # Long names of local meetings differ if their ends do.
    "meeting-names": Mutation(
        "dtensor/comm/processes/local_meeting.cpp",
        'hash(name),\n      "#",\n      hash(name + "#"));',
        'hash("name"),\n      "#",\n      hash("#"));',
        "LocalMeeting.KeepsLongNamesApart",
        "launching",
    ),
    # A checkpoint replaces no folder of other files.
    "replaced-folders": Mutation(
        "dtensor/checkpoint/save_run.cpp",
        "      why.empty(),\n",
        "      why.empty() || path.size() > 0,\n",
        "CheckpointErrors.OfReplacingOtherFolders",
        "checkpoint",
    ),
    # A port has 16 bits.
    "ports": Mutation(
        "dtensor/comm/processes/greeting.cpp",
        "port >= 1 && port <= kLastPort",
        "port >= 1",
        "HostilePeers.InvalidAddresses",
        "launching",
    ),
    # Shared memory beyond the limit on file sizes is refused, not grown.
    "file-size-limit": Mutation(
        "dtensor/comm/shared_memory/shared_segment.cpp",
        "      bytes <= file_size_limit(),\n",
        "      bytes <= file_size_limit() || bytes > 0,\n",
        "Over/Faults.AFileSizeLimitKillsNoRank/shm",
        "faults",
    ),
}


def run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def last_words(text: str) -> str:
    """Returns the output of a test about its first different case or failure."""
    words = re.compile("DIFFERENT|: Failure")
    lines = [line for line in text.splitlines() if words.search(line)]
    return (lines or text.strip().splitlines() or [""])[0][:200]


def is_noticed(name: str, mutation: Mutation, build: Path) -> bool:
    source = ROOT / mutation.file
    text = source.read_text()
    found = text.count(mutation.mend)
    if found != 1:
        sys.exit(f"{mutation.file} contains {mutation.mend!r} {found} times, expected once")
    try:
        source.write_text(text.replace(mutation.mend, mutation.without))
        built = run(["cmake", "--build", str(build), "--target", mutation.target])
        if built.returncode != 0:
            sys.exit(f"{name} does not build:\n{built.stdout[-4000:]}")
        tested = run(mutation.command(build))
    finally:
        source.write_text(text)
    noticed = tested.returncode != 0
    if re.search("No tests were found|running 0 tests", tested.stdout + tested.stderr, re.I):
        sys.exit(f"{build} has no test {mutation.shown_test}")
    words = f"\n    {last_words(tested.stdout)}" if noticed else ""
    verb = "fails" if noticed else "PASSES"
    print(f"{name}: without it {mutation.shown_test} {verb}{words}", flush=True)
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
