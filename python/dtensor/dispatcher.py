# SPDX-License-Identifier: BSD-3-Clause
"""Replacement for PyTorch's dispatcher, ``DTensor._op_dispatcher``.

PyTorch's own modules keep using PyTorch's dispatcher, for their rules. The engine
takes over rules of ``register_sharding``. A program that would change or query
PyTorch's dispatcher gets an error that names an alternative, because the
dispatcher runs no operator on the DTensors of this package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from dtensor import _C

_REGISTER = "torch.distributed.tensor.experimental.register_sharding"
_USE = {
    "register_op_strategy": _REGISTER,
    "register_sharding_prop_rule": _REGISTER,
    "register_single_dim_op_strategy": _REGISTER,
    "op_strategy_funcs": _REGISTER,
    "op_single_dim_strategy_funcs": _REGISTER,
    "op_to_rules": _REGISTER,
    "op_to_schema_info": _REGISTER,
    "_custom_op_handlers": _REGISTER,
    "_allow_implicit_replication": "torch.distributed.tensor.experimental."
    "implicit_replication()",
    "_random_ops": "torch.distributed.tensor._random.manual_seed",
    "redistribute_local_args": "DTensor.redistribute",
    "wrap": "DTensor.from_local",
    "propagate": "the placements of the operator's result",
    "propagate_op_sharding": "the placements of the operator's result",
}
#: Methods that register a rule, and the tables in which PyTorch keeps the rules.
_TABLES = {
    "register_op_strategy": "op_strategy_funcs",
    "register_sharding_prop_rule": "op_to_rules",
    "register_single_dim_op_strategy": "op_single_dim_strategy_funcs",
}


def _refusal(what: str, name: str) -> NotImplementedError:
    use = _USE.get(name)
    return NotImplementedError(
        f"[dtensor] {what} has no effect: PyTorch's dispatcher runs no operator on "
        "the DTensors of this package. "
        + (f"Use {use}." if use else "Remove it, or run on PyTorch's own DTensor.")
    )


def _is_of_pytorch(module: Any) -> bool:
    return str(module).partition(".")[0] == "torch"


def _function_of(rule: Any) -> Any:
    """Returns the function in an entry of PyTorch's tables."""
    rule = getattr(rule, "func", rule)  # _SingleDimStrategyInfo, or a partial
    return getattr(rule, "__wrapped__", rule)


def _custom_rule(rule: Any) -> Callable | None:
    """Returns the function that register_sharding() of PyTorch was given."""
    source = "torch.distributed.tensor.experimental._register_sharding"
    args = getattr(rule, "args", ())
    return args[0] if args and _function_of(rule).__module__ == source else None


class _Guarded:
    """An object of PyTorch that only PyTorch's modules may use."""

    def __init__(self, theirs: Any, path: str):
        object.__setattr__(self, "_theirs", theirs)
        object.__setattr__(self, "_path", path)

    def _check(self, name: str) -> None:
        caller = sys._getframe(2).f_globals.get("__name__")
        if not _is_of_pytorch(caller):
            raise _refusal(f"{self._path}.{name}", name)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._theirs, name)  # the error for a missing name
        self._check(name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._check(name)
        setattr(self._theirs, name, value)


class _Propagator(_Guarded):
    def _register(self, method: str, op: Any, rule: Any, schema_info: Any) -> None:
        custom = _custom_rule(rule)
        if custom is not None:
            _C.register_sharding(op.name(), custom)
        elif _is_of_pytorch(getattr(_function_of(rule), "__module__", None)):
            getattr(self._theirs, method)(op, rule, schema_info)
        else:
            raise _refusal(f"{method}({op.name()})", method)

    def register_op_strategy(
        self, op_overload: Any, strategy_func: Any, schema_info: Any = None
    ) -> None:
        self._register(
            "register_op_strategy", op_overload, strategy_func, schema_info
        )

    def register_sharding_prop_rule(
        self, op_overload: Any, rule_func: Any, schema_info: Any = None
    ) -> None:
        self._register(
            "register_sharding_prop_rule", op_overload, rule_func, schema_info
        )

    def register_single_dim_op_strategy(
        self, op_overload: Any, strategy_info: Any, schema_info: Any = None
    ) -> None:
        self._register(
            "register_single_dim_op_strategy",
            op_overload,
            strategy_info,
            schema_info,
        )


class OpDispatcher(_Guarded):
    """PyTorch's dispatcher for PyTorch's modules, an error for all others."""

    def __init__(self, theirs: Any):
        super().__init__(theirs, "DTensor._op_dispatcher")
        propagator = _Propagator(
            theirs.sharding_propagator, "DTensor._op_dispatcher.sharding_propagator"
        )
        object.__setattr__(self, "sharding_propagator", propagator)


def _refusing_rule(op: Any, method: str) -> Callable:
    def rule(*args: Any, **kwargs: Any) -> None:
        raise _refusal(f"{method}({op.name()})", method)

    return rule


def take_over_rules(theirs: Any) -> None:
    """Registers with the engine the rules that a program registered with
    PyTorch. Rules that register_sharding() did not make are an error when their
    operator is called."""
    for method, table in _TABLES.items():
        for op, rule in getattr(theirs.sharding_propagator, table, {}).items():
            custom = _custom_rule(rule)
            module = getattr(_function_of(rule), "__module__", None)
            if custom is not None:
                _C.register_sharding(op.name(), custom)
            elif not _is_of_pytorch(module):
                _C.register_sharding(op.name(), _refusing_rule(op, method))
