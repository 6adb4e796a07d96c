#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Tests examples/program with the export of the guide: example.py PROGRAM
GUIDE.

Runs the guide's Python code, then the program with a plan that it finds, with
the same plan from a file, and with other inputs, and checks the output.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import torch

program, guide = sys.argv[1], pathlib.Path(sys.argv[2])

PLAN = """\
0                     rowwise
1.self_attn           colwise fused_projections=3 multiple_of=8
1.self_attn.out_proj  rowwise multiple_of=8
1.linear1             colwise
1.linear2             rowwise
2                     colwise"""

LAYOUTS = {
    "0.weight": "f32[1000, 64] S(0)",
    "1.self_attn.in_proj_weight": "f32[192, 64] SS(0, sf=3, u=8)",
    "1.self_attn.out_proj.weight": "f32[64, 64] S(1, u=8)",
    "1.self_attn.out_proj.bias": "f32[64] R",
    "1.linear1.weight": "f32[256, 64] S(0)",
    "1.linear1.bias": "f32[256] S(0)",
    "1.linear2.weight": "f32[64, 256] S(1)",
    "1.norm1.weight": "f32[64] R",
    "2.weight": "f32[1000, 64] S(0)",
}


def run(*arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    return done


def printed(done, ranks):
    """Parses the output of a run: its plan, layouts, and (count, bytes) by
    collective."""
    assert done.returncode == 0, done.returncode
    assert f"{ranks} ranks against one: largest difference " in done.stdout
    plan, rest = done.stdout.split("plan:\n")[1].split("\n\n", 1)
    layouts = {name: f"{shape} {layout}" for name, shape, layout in re.findall(
        r"^(?:parameter |result ?)(\S*?) ?(\w+\[.*\]) on \(tp=%d\): (.*)$" % ranks,
        rest, re.MULTILINE)}
    rows = re.findall(
        r"^.*\bforward +(\w+) +tp +(\d+) +(\d+) ", rest, re.MULTILINE)
    collectives = {}
    for kind, count, size in rows:
        before = collectives.get(kind, (0, 0))
        collectives[kind] = (before[0] + int(count), before[1] + int(size))
    return plan, layouts, collectives


def check(done, ranks, plan, result, collectives):
    got = printed(done, ranks)
    assert got[0] == plan, got[0]
    for name, layout in (LAYOUTS if "colwise" in plan else {}).items():
        if ranks == 2:  # the same shards as without units
            layout = layout.replace(", u=8", "")
        assert got[1].get(name) == layout, (name, got[1].get(name))
    assert result in got[1].values(), got[1]
    assert got[2] == collectives, got[2]


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    python = re.search(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)[1]
    subprocess.run([sys.executable, "-c", python], cwd=folder, check=True)
    model, plan = str(folder / "model.pt2"), str(folder / "plan.txt")

    # The embedding, attention and the linears each all-reduce 2 x 16 tokens.
    sums = {"all_reduce": (3, 3 * 2 * 16 * 64 * 4)}
    found = run(model, "--auto", "--ranks", "3")
    check(found, 3, PLAN, "f32[2, 16, 1000] S(2)", sums)
    pathlib.Path(plan).write_text(PLAN + "\n")
    with_plan = run(model, "--plan", plan, "--ranks", "2")
    check(with_plan, 2, PLAN, "f32[2, 16, 1000] S(2)", sums)
    whole = run(model, "--ranks", "2")
    check(whole, 2, "# no styles: no weight is sharded",
          "f32[2, 16, 1000] R", {})

    # Inputs of another size.
    inputs = str(folder / "inputs.pt")
    torch.save([torch.randint(0, 1000, (3, 5))], inputs)
    other = run(model, "--plan", plan, "--inputs", inputs, "--ranks", "2")
    check(other, 2, PLAN, "f32[3, 5, 1000] S(2)",
          {"all_reduce": (3, 3 * 3 * 5 * 64 * 4)})
    torch.save([torch.rand(3, 5)], inputs)
    refused = run(model, "--inputs", inputs)
    assert refused.returncode == 1
    assert "is f32[3, 5], but the program was exported for i64[" in refused.stderr
    refused = run(model, "--inputs", str(folder / "absent.pt"))
    assert refused.returncode == 1 and "absent.pt" in refused.stderr

    pathlib.Path(plan).write_text("absent colwise\n")
    refused = run(model, "--plan", plan)
    assert refused.returncode == 1 and "absent" in refused.stderr
    missing = run(str(folder / "nothing.pt2"))
    assert missing.returncode == 1 and "nothing.pt2" in missing.stderr
