#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the benchmarks and their anchors alternately and compares them.

dtensor's programs are in build/bench/benchmarks. The anchors of the program NAME are
benchmarks/anchors/NAME.py (called "python") and NAME_LABEL.py. All print one
line of JSON for each figure; equal names mean equal work. benchmarks/bars.json
has the required figures.

Prints one table, and appends every figure to build/bench/results.jsonl.
"""

import argparse
import datetime
import fnmatch
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/bench"
ANCHORS = ROOT / "benchmarks/anchors"
# Programs in the order of the table; those that are not built are skipped. The
# value is the prefix of the names of the program's figures.
PROGRAMS = {
    "warm_ops": ("warm/",),
    "cold": ("cold/",),
    "convolution": ("convolution/",),
    "mlp": ("mlp/",),
    "python": ("python/",),
    "collectives": ("all_", "barrier/", "broadcast/", "memcpy/", "reduce_scatter/"),
    "processes": ("processes/",),
    "gloo": ("gloo/",),
    "launched": ("launched/",),
    "gpt_step": ("gpt/", "gpt_small/"),
    "decode": ("decode/", "prompt/"),
    "programs": ("program/",),
    "smollm2": ("smollm2/",),
    "overlap": ("overlap/",),
    "overlap_gloo": ("overlap/gloo/",),
    "checkpoint": ("checkpoint/",),
}
# Default of --only for programs that take long.
ONLY = {"launched": "launched/all_reduce/4/4194304"}
# Backends for two hosts: dtensor's backend, and the backend to compare with.
HOSTS_SIDES = {"ours": "hierarchical", "gloo": "gloo"}
SKIPPED = 77  # exit code
QUIET = 0.5  # maximum load average


def run_lines(command: list[str]) -> list[dict]:
    """Returns the lines of JSON that a program prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode == SKIPPED:
        note(f"{done.stdout.strip()}: {' '.join(command)}")
        return []
    if done.returncode != 0:
        raise SystemExit(f"bench: {' '.join(command)} exited with {done.returncode}")
    # A launcher prefixes each line with its rank.
    lines = [line[max(line.find("{"), 0) :] for line in done.stdout.splitlines()]
    return [json.loads(line) for line in lines]


def smoke(program: str) -> None:
    """Checks that a program runs and prints valid lines."""
    lines = run_lines([program, "--smoke"])
    for line in lines:
        if not isinstance(line["benchmark"], str) or len(line) < 2:
            raise SystemExit(f"bench: not a result line: {line}")
    if not lines:
        raise SystemExit(f"bench: {program} --smoke prints no result")
    print(f"{len(lines)} results")


# --- running -----------------------------------------------------------------


def binary_of(program: str) -> Path | None:
    path = BUILD / "benchmarks" / program
    return path if path.exists() else None


def anchors_of(program: str) -> dict[str, Path]:
    """Returns label -> script."""
    result = {}
    for path in sorted(ANCHORS.glob(f"{program}*.py")):
        result[path.stem[len(program) + 1 :] or "python"] = path
    return result


def python_with_torch() -> str | None:
    for python in (str(ROOT / ".venv/bin/python"), sys.executable):
        if Path(python).exists():
            check = [python, "-c", "import torch.distributed.tensor"]
            if subprocess.run(check, capture_output=True).returncode == 0:
                return python
    return None


def on_two_hosts(backend: str) -> list[str]:
    """Returns the command for two ranks in each of two network namespaces."""
    return [
        "env",
        f"DTENSOR_BACKEND={backend}",
        str(ROOT / "tests/processes/two_hosts.sh"),
        str(BUILD / "launcher/dtensor-run"),
        "2",
        str(binary_of("launched")),
    ]


def on_the_package(program: str) -> list[str]:
    """Returns the command for an anchor on the Python package dtensor."""
    python = str(ROOT / ".venv/bin/python")
    module = [python, "-m", "dtensor", str(ANCHORS / f"{program}.py")]
    return ["env", f"PYTHONPATH={BUILD / 'python'}", *module]


def on_two_processes(program: str, backend: str) -> list[str]:
    return [
        "env",
        f"DTENSOR_BACKEND={backend}",
        str(BUILD / "launcher/dtensor-run"),
        *("-n", "2"),
        str(binary_of(program)),
    ]


def sides(program: str, options) -> dict[str, list[str]]:
    """Returns label -> command, dtensor's first."""
    if program == "launched" and binary_of(program):
        names = HOSTS_SIDES if options.anchors else {"ours": HOSTS_SIDES["ours"]}
        return {side: on_two_hosts(name) for side, name in names.items()}
    if program == "overlap_gloo" and binary_of("overlap"):
        return {"ours": on_two_processes("overlap", "gloo")}
    commands = {}
    if program == "python" and any(BUILD.glob("python/dtensor/_C*")):
        commands["ours"] = on_the_package(program)
    if binary := binary_of(program):
        commands["ours"] = [str(binary)]
    if options.python:
        for label, path in anchors_of(program).items():
            commands[label] = [options.python, str(path)]
    return commands


def wanted(program: str, only: str) -> bool:
    return any(p.startswith(only) or only.startswith(p) for p in PROGRAMS[program])


class Results:
    """Figures of every side over all rounds."""

    def __init__(self):
        self.lines = {}  # (benchmark, side) -> lines

    def add(self, side: str, line: dict) -> None:
        self.lines.setdefault((line["benchmark"], side), []).append(line)

    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.lines))

    def anchors(self, benchmark: str) -> list[str]:
        return [s for name, s in self.lines if name == benchmark and s != "ours"]

    def figure(self, benchmark: str, side: str, field: str) -> float | None:
        """Returns the median over the rounds."""
        lines = self.lines.get((benchmark, side), [])
        values = [line[field] for line in lines if field in line]
        return statistics.median(values) if values else None

    def spread(self, benchmark: str, side: str, field: str) -> float:
        """Returns the range over the rounds, relative to the figure. With one
        round, returns the range of its middle half."""
        lines = self.lines[benchmark, side]
        values = [line[field] for line in lines]
        if len(values) == 1 or not (middle := statistics.median(values)):
            return lines[0].get("spread", 0)
        return (max(values) - min(values)) / abs(middle)


def measure(options) -> Results:
    results = Results()
    facts = facts_of_this_run()
    with (BUILD / "results.jsonl").open("a") as log:
        for program in PROGRAMS:
            if not wanted(program, options.only):
                continue
            for number in range(options.rounds):
                for side, command in sides(program, options).items():
                    note(f"{program}, round {number + 1}: {side}")
                    if only := options.only or ONLY.get(program):
                        command = [*command, "--only", only]
                    for line in figures_of(side, command):
                        results.add(side, line)
                        entry = {"side": side, **line, **facts, "round": number}
                        log.write(json.dumps(entry) + "\n")
    return results


def figures_of(side: str, command: list[str]) -> list[dict]:
    """Runs a side. A failing anchor is skipped; a failure of dtensor's
    program ends the tool."""
    try:
        return run_lines(command)
    except SystemExit as failure:
        if side == "ours":
            raise
        note(f"{failure}; skipped".removeprefix("bench: "))
        return []


def note(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def facts_of_this_run() -> dict:
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    dirty = subprocess.run([*git, "diff", "--quiet", "HEAD"]).returncode
    return {
        "commit": head.stdout.strip() + ("+" if dirty else ""),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds"),
        "load": round(os.getloadavg()[0], 2),
    }


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


# --- bars --------------------------------------------------------------------


class Bar:
    """Required value of a figure; see benchmarks/bars.json."""

    def __init__(self, entry: dict):
        self.patterns = entry["benchmarks"]
        self.field = entry.get("field", "us")
        self.at_most = entry.get("at_most")
        self.at_most_of = entry.get("at_most_of")
        self.times_faster = entry.get("times_faster")

    def matches(self, benchmark: str) -> bool:
        return any(fnmatch.fnmatchcase(benchmark, p) for p in self.patterns)

    def text(self) -> str:
        parts = []
        if self.at_most is not None:
            parts.append(f"<= {figure_text(self.at_most, self.field)}")
        if of := self.at_most_of:
            parts.append(f"<= {of['times']:g} {of['benchmark']}")
        if faster := self.times_faster:
            whose = " ".join([faster["anchor"], faster.get("benchmark", "")])
            parts.append(f"{faster['times']:g}x {whose}".rstrip())
        return ", ".join(parts)

    def verdict(self, benchmark: str, results: Results) -> str:
        """Returns "yes", "NO", or "?" if there is no figure to compare with."""
        ours = results.figure(benchmark, "ours", self.field)
        if ours is None:
            return "?"
        limits = [] if self.at_most is None else [self.at_most]
        if of := self.at_most_of:
            other = results.figure(of["benchmark"], "ours", "us")
            limits.append(other and other * of["times"])
        if faster := self.times_faster:
            theirs = faster.get("benchmark", benchmark)
            other = results.figure(theirs, faster["anchor"], self.field)
            limits.append(other and other / faster["times"])
        if any(limit is not None and ours > limit for limit in limits):
            return "NO"
        return "?" if None in limits else "yes"


def load_bars() -> list[Bar]:
    return [Bar(entry) for entry in json.loads((ROOT / "benchmarks/bars.json").read_text())]


# --- table -------------------------------------------------------------------


def figure_text(figure: float | None, field: str) -> str:
    """Returns microseconds with a unit, and other figures without one."""
    if figure is None:
        return "-"
    return time_text(figure) if field.endswith("us") else f"{figure:.3g}"


def time_text(us: float) -> str:
    if abs(us) >= 1e6:
        return f"{us / 1e6:.2f} s"
    if abs(us) >= 1e4:
        return f"{us / 1e3:.1f} ms"
    return f"{us:.0f} us" if abs(us) >= 1e3 else f"{us:.3g} us"


def field_of(benchmark: str, bar: Bar | None, results: Results) -> str:
    """Returns the field of a benchmark that the table shows."""
    if bar:
        return bar.field
    extra = results.figure(benchmark, "ours", "extra_us")
    return "us" if extra is None else "extra_us"


def rows(results: Results, bars: list[Bar]) -> list[tuple]:
    table = []
    for benchmark in results.benchmarks():
        bar = next((b for b in bars if b.matches(benchmark)), None)
        field = field_of(benchmark, bar, results)
        for number, (anchor, shown) in enumerate(pairs(benchmark, field, results)):
            judged = bar is not None and number == 0
            table.append((
                benchmark + (" extra" if shown == "extra_us" else ""),
                *compared(benchmark, anchor, shown, results),
                bar.text() if judged else "",
                bar.verdict(benchmark, results) if judged else "",
            ))
    return table


def pairs(benchmark: str, field: str, results: Results) -> list[tuple]:
    """Returns each anchor and the figure that both sides have. An anchor
    without a plain neighbour is compared by the total time of a call, on a
    separate line."""
    anchors = results.anchors(benchmark)
    whole = [a for a in anchors if results.figure(benchmark, a, field) is None]
    others = [a for a in anchors if a not in whole]
    return [(a, field) for a in others or [None]] + [(a, "us") for a in whole]


def compared(benchmark: str, anchor: str | None, field: str, results: Results) -> tuple:
    """Returns dtensor's figure, the anchor's, their ratio, and the spread of the
    first."""
    ours = results.figure(benchmark, "ours", field)
    theirs = results.figure(benchmark, anchor, field) if anchor else None
    spread = "-"
    if ours is not None:
        spread = f"{100 * results.spread(benchmark, 'ours', field):.0f} %"
    return (
        figure_text(ours, field),
        f"{anchor} {figure_text(theirs, field)}" if anchor else "-",
        f"{theirs / ours:.1f}" if theirs and ours and ours > 0 else "-",
        spread,
    )


HEAD = ("benchmark", "ours", "anchor", "ratio", "spread", "bar", "met")


def print_table(head: tuple, table: list[tuple]) -> None:
    lines = [head, *table]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rule = tuple("-" * width for width in widths)
    for line in (head, rule, *table):
        cells = (cell.ljust(width) for cell, width in zip(line, widths))
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each program")
    parser.add_argument("--only", default="", help="only results whose name starts with this")
    parser.add_argument(
        "--no-anchors", dest="anchors", action="store_false", help="do not run the anchors"
    )
    parser.add_argument("--smoke", metavar="PROGRAM", help="only test that the program runs")
    options = parser.parse_args()
    if options.smoke:
        return smoke(options.smoke)
    if (load := os.getloadavg()[0]) > QUIET:
        note(f"WARNING: load average {load:.2f}; timings need a quiet machine")
    options.python = python_with_torch() if options.anchors else None
    if options.anchors and options.python is None:
        note("no Python with torch: skipping the anchors")
    print_table(HEAD, rows(measure(options), load_bars()))


if __name__ == "__main__":
    main()
