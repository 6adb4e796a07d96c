#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""examples/program on what the guide exports: example.py PROGRAM GUIDE.

Runs the guide's Python, then the program with a plan that it finds, the same
plan from a file, and other inputs; and looks at what it prints.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

program, guide = sys.argv[1], pathlib.Path(sys.argv[2])


def run(*arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    return done


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    python = re.search(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)[1]
    subprocess.run([sys.executable, "-c", python], cwd=folder, check=True)
    model = str(folder / "model.pt2")
    found = run(model, "--auto", "--ranks", "3")
    assert found.returncode == 0 and "3 ranks against one" in found.stdout
    plan = found.stdout.split("plan:\n")[1].split("\n\n")[0]
    assert "colwise" in plan and "rowwise" in plan, plan
    (folder / "plan.txt").write_text(plan)
    with_plan = run(model, "--plan", str(folder / "plan.txt"), "--ranks", "2")
    assert with_plan.returncode == 0 and "all_reduce" in with_plan.stdout
    (folder / "plan.txt").write_text("nobody colwise\n")
    refused = run(model, "--plan", str(folder / "plan.txt"))
    assert refused.returncode == 1 and "nobody" in refused.stderr
    missing = run(str(folder / "nothing.pt2"))
    assert missing.returncode == 1 and "nothing.pt2" in missing.stderr
