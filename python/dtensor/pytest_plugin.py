# SPDX-License-Identifier: BSD-3-Clause
"""Runs tests of torch.distributed.tensor on dtensor, and on several ranks.

    pytest -p dtensor.pytest_plugin test_model.py

replaces the DTensor of PyTorch before test files are imported. A test with the
mark ``ranks`` runs on ranks that are threads of the process, once for each
number:

    @pytest.mark.ranks(1, 4)
    def test_sharded_sum(): ...
"""

from __future__ import annotations

from typing import Any

import dtensor.as_torch  # noqa: F401
import pytest

import dtensor


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "ranks(n, ...): runs the test on n ranks, which are threads"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    marker = pyfuncitem.get_closest_marker("ranks")
    if marker is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    for ranks in marker.args:
        dtensor.run_world(ranks, lambda: pyfuncitem.obj(**arguments))
    return True
