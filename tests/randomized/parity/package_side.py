#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs parity cases like python_side.py, on the Python package of this library.

package_side.py CASES RESULTS, with the package in PYTHONPATH.
"""

import json
import sys
from pathlib import Path

import dtensor.as_torch  # noqa: F401  (before python_side imports names)
import python_side

if __name__ == "__main__":
    cases, results = map(Path, sys.argv[1:])
    results.write_text(json.dumps(python_side.run(json.loads(cases.read_text()))))
