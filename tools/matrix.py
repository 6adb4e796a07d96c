#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Builds dtensor and runs its tests with several versions of LibTorch.

A version is a pip version: 2.13.0 is the build for the CPU, 2.13.0+cuda the
build for CUDA. Each has a folder under build/matrix, with a Python environment
that contains it, the build and the logs. Existing folders are reused.

Prints one table. A version that pip cannot install has a line too.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / "build/matrix"
NUMBERS = ["2.15.0", "2.14.1", "2.13.0", "2.12.1", "2.11.0"]
VERSIONS = [number + kind for number in NUMBERS for kind in ("", "+cuda")]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Packages of tests of file formats and of PyTorch's own samples. Without them
# these tests are skipped.
TEST_PACKAGES = ["numpy", "expecttest", "gguf", "safetensors", "sentencepiece"]
# Targets of the suites without a target dtensor_<suite>_tests.
TARGETS = {
    "drawn_calls": ["dtensor_op_samples"],
    "package": ["dtensor_testing", "dtensor_archive"],
    "redistribute": ["dtensor_redistribute_tests", "dtensor_plan_list"],
    "processes": [
        "dtensor_process_tests",
        "dtensor_process_tensor_tests",
        "dtensor_run",
    ],
}
NAMED = 10  # maximum number of failed tests listed per version


class Failure(Exception):
    """Ends the run of one version. The text is shown in the table."""


def all_suites() -> list[str]:
    """Returns the labels of tests/CMakeLists.txt."""
    text = (ROOT / "tests/CMakeLists.txt").read_text()
    named = re.findall(r"^ *dtensor_test\((\w+)", text, re.M)
    return [*named, "processes", "drawn_calls", "package"]


def note(text: str) -> None:
    print(f"matrix: {text}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{seconds:.0f} s"


# --- one version -------------------------------------------------------------


class Version:
    """One LibTorch: its pip version, its folder, and its results."""

    def __init__(self, name: str):
        self.name = name
        self.number, _, self.label = name.partition("+")
        self.folder = MATRIX / name
        self.kind = "CUDA" if self.label else "CPU"
        self.built = "no"
        self.tests = Counter()  # "passed", "failed", "skipped"
        self.failed = []
        self.seconds = 0.0

    def run(self, log: str, command: list, **more) -> int:
        """Runs a command and returns its exit status. The command and its
        output go to a log."""
        with (self.folder / f"{log}.log").open("a") as out:
            print("$", *command, file=out, flush=True)
            done = subprocess.run(
                command, cwd=ROOT, stdout=out, stderr=out, env=self.environment(), **more
            )
        return done.returncode

    def environment(self) -> dict:
        """Returns the environment without variables that select another
        LibTorch. OpenMP threads wait without polling, because tests run in
        parallel."""
        others = ("CMAKE_PREFIX_PATH", "Torch_DIR", "Torch_ROOT", "PYTHONPATH")
        kept = {k: v for k, v in os.environ.items() if k not in others}
        return kept | {
            "GTEST_OUTPUT": f"json:{self.folder}/results/",
            "OMP_WAIT_POLICY": "passive",
        }

    def torch(self) -> Path | None:
        """Returns the folder of the torch package, if it is installed."""
        found = sorted(self.folder.glob("venv/lib/python*/site-packages/torch"))
        return found[0] if found else None

    def has_kind(self) -> str:
        """Returns the installed kind: "CPU", or "CUDA" and its version."""
        text = (self.torch() / "version.py").read_text()
        cuda = re.search(r"^cuda.*'([\d.]+)'", text, re.M)
        return f"CUDA {cuda[1]}" if cuda else "CPU"


def pip_install(version: Version, venv: Path, wanted: str) -> bool:
    """Runs pip as it is configured, then with PyTorch's index of CPU builds, then
    without its configuration, which may exclude the version."""
    install = [venv / "bin/python", "-m", "pip", "install", wanted]
    attempts = [install]
    if version.kind == "CPU":
        index = ["--index-url", CPU_INDEX, "--timeout", "15", "--retries", "1"]
        attempts.append([*install, *index])
    # The variable replaces the files of the configuration, and the option other
    # variables.
    attempts.append(
        ["env", f"PIP_CONFIG_FILE={os.devnull}", *attempts[-1], "--isolated"]
    )
    return any(version.run("fetch", command) == 0 for command in attempts)


def fetch(version: Version) -> None:
    """Installs the version with pip, unless it is installed. A CPU build has a
    suffix in its version, a CUDA build may have one, and `===` accepts only the
    exact name."""
    if not version.torch():
        wanted = {"": f"=={version.number}+cpu", "cuda": f"==={version.number}"}
        wanted = wanted.get(version.label, f"==={version.name}")
        note(f"{version.name}: pip install torch{wanted}")
        venv = version.folder / "venv"
        made = version.run("fetch", [sys.executable, "-m", "venv", venv])
        if made != 0 or not pip_install(version, venv, f"torch{wanted}"):
            shutil.rmtree(venv, ignore_errors=True)
            raise Failure(f"not fetched: pip cannot get torch{wanted}")
        pip = [venv / "bin/python", "-m", "pip"]
        version.run("fetch", [*pip, "install", *TEST_PACKAGES])
    kind = version.has_kind()
    if not kind.startswith(version.kind):
        raise Failure(f"not fetched: pip's torch is built for {kind}")
    version.kind = kind


def uses_its_torch(version: Version, folder: Path) -> bool:
    """Returns whether a configured build uses the LibTorch of the version."""
    cache = (folder / "CMakeCache.txt").read_text()
    found = re.search(r"^Torch_DIR:\w+=(.+)$", cache, re.M)
    return bool(found) and Path(found[1]).is_relative_to(version.torch())


def configure(version: Version, folder: Path) -> None:
    """Configures a build. In a folder with another compiler, such as that of an
    earlier preset, CMake begins again without the options of the command, and
    would find another LibTorch."""
    command = [
        *("cmake", "--preset", "dev", "-B", folder),
        "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
        "-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF",
        "-DDTENSOR_TEST_EACH=OFF",
        "-DDTENSOR_EXAMPLES=OFF",
        f"-DCMAKE_PREFIX_PATH={version.torch()}",
    ]
    for options in [], ["--fresh"]:
        if version.run("build", [*command, *options]) != 0:
            raise Failure("NO, CMake fails")
        if uses_its_torch(version, folder):
            return
    raise Failure("NO, CMake finds another LibTorch")


def build(version: Version, suites: list[str], jobs: int) -> None:
    note(f"{version.name}: building")
    folder = version.folder / "build"
    configure(version, folder)
    known = subprocess.run(
        ["cmake", "--build", folder, "--target", "help"], capture_output=True, text=True
    ).stdout
    # Some suites need an MPI or libraries of the examples.
    wanted = [t for s in suites for t in TARGETS.get(s, [f"dtensor_{s}_tests"])]
    targets = [t for t in wanted if re.search(rf"\b{t}\b", known)]
    command = ["cmake", "--build", folder, "--parallel", str(jobs), "--target"]
    if version.run("build", [*command, "dtensor_dtensor"]) != 0:
        raise Failure("NO, compilation fails")
    version.built = "yes"
    if version.run("build", [*command, *targets, "--", "-k", "0"]) != 0:
        version.built = "NO, the tests do not compile"


def test(version: Version, suites: list[str], jobs: int) -> None:
    note(f"{version.name}: testing")
    results, report = version.folder / "results", version.folder / "ctest.xml"
    shutil.rmtree(results, ignore_errors=True)
    version.run("test", [
        *("ctest", "--test-dir", version.folder / "build"),
        *("--label-regex", f"^({'|'.join(suites)})$"),
        # One more, because some tests mostly wait for failed ranks.
        *("--parallel", str(jobs + 1), "--output-on-failure"),
        *("--output-junit", report),
    ])
    if not report.exists():
        raise Failure(f"{version.built}, but ctest ran nothing")
    for case in xml.parse(report).iter("testcase"):
        count(version, case.get("name"), case.get("status"))


def count(version: Version, name: str, status: str) -> None:
    """Adds the results of a test program, from its own output if there is any."""
    report = version.folder / f"results/dtensor_{name}_tests.json"
    if not report.exists():
        verdict = {"run": "passed", "disabled": "skipped"}.get(status, "failed")
        version.tests[verdict] += 1
        version.failed += [name] if verdict == "failed" else []
        return
    failed_before = len(version.failed)
    for suite in json.loads(report.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                version.failed.append(f"{name}: {suite['name']}.{case['name']}")
                version.tests["failed"] += 1
            elif case["result"] == "SKIPPED":
                version.tests["skipped"] += 1
            elif case["status"] == "RUN":
                version.tests["passed"] += 1
    # A program may fail without a failed case, for example in a suite's setup.
    if status not in ("run", "disabled") and len(version.failed) == failed_before:
        version.failed.append(name)
        version.tests["failed"] += 1


def try_version(version: Version, options) -> None:
    begin = time.monotonic()
    version.folder.mkdir(parents=True, exist_ok=True)
    for old in (*version.folder.glob("*.log"), *version.folder.glob("*.xml")):
        old.unlink()
    try:
        fetch(version)
        build(version, options.suites, options.jobs)
        test(version, options.suites, options.jobs)
    except Failure as failure:
        version.built = str(failure)
    version.seconds = time.monotonic() - begin


# --- table -------------------------------------------------------------------

HEAD = ("LibTorch", "for", "built", "passed", "failed", "skipped", "time")


def row(version: Version) -> tuple:
    counts = [version.tests[k] for k in ("passed", "failed", "skipped")]
    tested = [str(n) for n in counts] if any(counts) else ["-"] * 3
    return (
        version.number, version.kind, version.built, *tested, duration(version.seconds)
    )


def print_table(versions: list[Version]) -> None:
    table = [row(version) for version in versions]
    widths = [max(len(line[i]) for line in (HEAD, *table)) for i in range(len(HEAD))]
    for line in (HEAD, tuple("-" * width for width in widths), *table):
        cells = (cell.ljust(width) for cell, width in zip(line, widths))
        print("| " + " | ".join(cells) + " |")
    for version in versions:
        for name in version.failed[:NAMED]:
            print(f"{version.name}: FAILED {name}")
        if more := version.failed[NAMED:]:
            print(f"{version.name}: and {len(more)} more, see test.log")
    if any(v.label for v in versions) and not has_gpu():
        print("tests that need a GPU: skipped, no GPU")
    print(f"logs: {MATRIX.relative_to(ROOT)}/<version>/{{fetch,build,test}}.log")


def has_gpu() -> bool:
    found = shutil.which("nvidia-smi")
    return bool(found) and subprocess.run([found, "-L"], capture_output=True).returncode == 0


def main() -> None:
    suites = all_suites()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--versions", nargs="*", metavar="V", help=f"versions, such as {' '.join(VERSIONS)}"
    )
    parser.add_argument(
        "--suites", nargs="*", choices=suites, metavar="S", help=f"suites: {' '.join(suites)}"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    options.suites = options.suites or suites
    versions = [Version(name) for name in options.versions or VERSIONS]
    for version in versions:
        try_version(version, options)
    print_table(versions)
    tested = [v for v in versions if v.tests]
    good = all(v.built == "yes" and not v.failed for v in versions if v.torch())
    sys.exit(0 if tested and good else 1)


if __name__ == "__main__":
    main()
