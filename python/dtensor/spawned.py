# SPDX-License-Identifier: BSD-3-Clause
"""Processes that a program starts with the method "spawn", such as the ranks of
``torch.multiprocessing.spawn``: they import the program again, not its command line.
"""

from __future__ import annotations

import functools
from multiprocessing import spawn
from typing import Any


class _ImportFirst:
    """A value that a spawned process unpickles before it imports the program."""

    def __reduce__(self) -> Any:
        return import_first, ()


def import_first() -> None:
    """Imports the package now, and first in processes that this process spawns."""
    import dtensor.as_torch  # noqa: F401

    prepared = spawn.get_preparation_data
    if hasattr(prepared, "imports_dtensor"):
        return

    @functools.wraps(prepared)
    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**prepared(name), "dtensor": _ImportFirst()}

    get_preparation_data.imports_dtensor = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = get_preparation_data
