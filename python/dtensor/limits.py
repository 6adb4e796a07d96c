# SPDX-License-Identifier: BSD-3-Clause
"""Errors for operations that this package's DTensors do not support."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorConverter

from dtensor import _C

_TEXT = (
    "[dtensor] torch.compile, torch.export and FakeTensorMode do not support "
    "the DTensors of this package. Decorate the function that uses them with "
    "torch.compiler.disable, or run the program on PyTorch's own DTensor."
)


def _refuse_dtensors_in_ddp(module: torch.nn.Module) -> None:
    """Throws for DTensors, which DistributedDataParallel would treat as plain."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if _C.is_dtensor(tensor) and name not in ignored:
            raise TypeError(
                f'[DistributedDataParallel] "{name}" is a DTensor, and no '
                "device_mesh is given. Pass the mesh of the ranks that share the "
                'batch, such as device_mesh=mesh["dp"].'
            )


def _check_ddp() -> None:
    """Lets DistributedDataParallel refuse DTensors if it has no mesh."""
    owner = torch.nn.parallel.DistributedDataParallel
    plain = owner.__init__
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def init(self, module: Any, *args: Any, **kwargs: Any):
        given = signature.bind_partial(self, module, *args, **kwargs).arguments
        if given.get("device_mesh") is None:
            _refuse_dtensors_in_ddp(module)
        return plain(self, module, *args, **kwargs)

    owner.__init__ = init


def install() -> None:
    """Refuses to make a fake tensor of a DTensor, and DistributedDataParallel
    without a mesh."""
    _check_ddp()
    plain = FakeTensorConverter.from_real_tensor

    @functools.wraps(plain)
    def from_real_tensor(self, fake_mode: Any, t: Any, *args: Any, **kwargs: Any):
        if _C.is_dtensor(t):
            raise NotImplementedError(_TEXT)
        return plain(self, fake_mode, t, *args, **kwargs)

    FakeTensorConverter.from_real_tensor = from_real_tensor
