# SPDX-License-Identifier: BSD-3-Clause
"""Fast conversions for PyTorch's tensor-parallel styles.

The styles are PyTorch's, with their hooks. The hooks of ColwiseParallel and
RowwiseParallel call one function of the engine instead of PyTorch's functions.
"""

from __future__ import annotations

from typing import Any

from dtensor import _C, imports

_PARAMETERS = {
    "_prepare_input_fn": (
        *("input_layouts", "desired_input_layouts", "mod", "inputs"),
        "device_mesh",
    ),
    "_prepare_output_fn": (
        *("output_layouts", "use_local_output", "mod", "outputs"),
        "device_mesh",
    ),
}


def _parameters(function: Any) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


def _replace_in(style: type) -> None:
    """Replaces the functions of a style that have the parameters of 2.13."""
    for name, function in {
        "_prepare_input_fn": _C.prepare_input,
        "_prepare_output_fn": _C.prepare_output,
    }.items():
        if _parameters(getattr(style, name)) == _PARAMETERS[name]:
            setattr(style, name, staticmethod(function))


def install() -> None:
    """Replaces the functions once PyTorch's styles are imported."""

    def replace(module: Any) -> None:
        for style in (module.ColwiseParallel, module.RowwiseParallel):
            _replace_in(style)

    imports.after_import("torch.distributed.tensor.parallel.style", replace)
