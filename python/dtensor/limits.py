# SPDX-License-Identifier: BSD-3-Clause
"""Errors for operations that this package's DTensors do not support."""

from __future__ import annotations

import functools
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorConverter

from dtensor import _C

_TEXT = (
    "[dtensor] torch.compile, torch.export and FakeTensorMode do not support "
    "the DTensors of this package. Decorate the function that uses them with "
    "torch.compiler.disable, or run the program on PyTorch's own DTensor."
)


def install() -> None:
    """Refuses to make a fake tensor of a DTensor."""
    plain = FakeTensorConverter.from_real_tensor

    @functools.wraps(plain)
    def from_real_tensor(self, fake_mode: Any, t: Any, *args: Any, **kwargs: Any):
        if _C.is_dtensor(t):
            raise NotImplementedError(_TEXT)
        return plain(self, fake_mode, t, *args, **kwargs)

    FakeTensorConverter.from_real_tensor = from_real_tensor
