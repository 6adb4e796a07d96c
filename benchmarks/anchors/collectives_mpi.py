# SPDX-License-Identifier: BSD-3-Clause
"""The collectives of benchmarks/collectives.cpp by OpenMPI: runs
mpi_collectives.

The program is built if CMake finds an OpenMPI. Without it, nothing is printed.
"""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/bench/benchmarks/mpi_collectives"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", default="", metavar="PREFIX")
    options = parser.parse_args()
    if not PROGRAM.exists() or not shutil.which("mpirun.openmpi"):
        return
    # OpenMPI requires explicit options for more ranks than cores, and for root.
    environment = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    for ranks in options.ranks:
        lines = subprocess.run(
            ["mpirun.openmpi", "-n", str(ranks), PROGRAM],
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.splitlines()
        for line in lines:
            if json.loads(line)["benchmark"].startswith(options.only):
                print(line)


if __name__ == "__main__":
    main()
