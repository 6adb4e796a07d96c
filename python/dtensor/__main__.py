# SPDX-License-Identifier: BSD-3-Clause
"""Runs a program for torch.distributed.tensor on dtensor.

    python -m dtensor program.py arguments
    torchrun --nproc-per-node 2 -m dtensor program.py arguments
    python -m dtensor -m package.module arguments

Prints CMAKE_PREFIX_PATH for C++ programs, of the library and of LibTorch:

    python -m dtensor --cmake-prefix-path
"""

import os
import runpy
import sys


def cmake_prefix_path() -> str:
    """Returns where find_package(dtensor) finds the library and LibTorch."""
    import torch

    import dtensor

    folder = dtensor.__path__[0]
    if not os.path.exists(os.path.join(folder, "lib", "cmake", "dtensor")):
        sys.exit(
            f"[dtensor] {folder} has no C++ headers: it is not an installed "
            "wheel. Use the folder that the library was installed in."
        )
    return f"{folder};{torch.utils.cmake_prefix_path}"


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments == ["-m"]:
        sys.exit("usage: python -m dtensor (program.py | -m module) [arguments]")
    if arguments == ["--cmake-prefix-path"]:
        print(cmake_prefix_path())
        return
    from dtensor import spawned

    spawned.import_first()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
