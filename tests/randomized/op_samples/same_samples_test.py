#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes samples twice and compares the files.

same_samples_test.py RECORDER_LIBRARY FOLDER

Samples must not depend on uninitialized memory, which glibc fills with another
byte each time, nor on the order of sets. The selected operators have samples
that use torch.empty or iterate over sets.
"""

import os
import subprocess
import sys
from pathlib import Path

ONLY = "^(cat|empty_like|meshgrid|new_empty|sort)$"
WRITER = Path(__file__).parent / "write_samples.py"


def samples_with(fill: int, recorder: str, folder: Path) -> bytes:
    output = folder / f"samples_{fill}.bin"
    output.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "MALLOC_PERTURB_": str(fill),
        "PYTHONHASHSEED": str(fill),
    }
    done = subprocess.run(
        [sys.executable, WRITER, recorder, output, "--only", ONLY],
        env=environment,
    )
    if done.returncode != 0:
        sys.exit(done.returncode)
    return output.read_bytes()


def main() -> None:
    recorder, folder = sys.argv[1:]
    first = samples_with(1, recorder, Path(folder))
    second = samples_with(128, recorder, Path(folder))
    if not first or first != second:
        sys.exit(f"the samples differ: {len(first)} and {len(second)} bytes")


if __name__ == "__main__":
    main()
