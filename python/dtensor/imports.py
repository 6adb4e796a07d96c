# SPDX-License-Identifier: BSD-3-Clause
"""Imports of PyTorch's modules: leaves some out, and runs actions after others."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

_RULES = "torch.distributed.tensor._ops"


class _DeferredModule(types.ModuleType):
    """A package whose ``__init__`` runs when a missing name is first used. Its
    submodules can be imported before."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__dict__.get("_is_executed"):
            raise AttributeError(f"module {self.__name__} has no attribute {name}")
        self._is_executed = True
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def defer_rules() -> None:
    """Leaves PyTorch's sharding rules out of ``torch.distributed.tensor``.

    The engine has rules of its own, and importing PyTorch's rules takes longer
    than importing all other modules around DTensor.
    """
    if "torch.distributed.tensor" in sys.modules or _RULES in sys.modules:
        return
    folder = os.path.join(torch.__path__[0], "distributed", "tensor")
    spec = importlib.machinery.PathFinder.find_spec(_RULES, [folder])
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _DeferredModule
        sys.modules[_RULES] = module


class _LoaderWithActions(importlib.abc.Loader):
    def __init__(self, name: str, loader: Any):
        self._name, self._loader = name, loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        for action in _finder.actions.pop(self._name, ()):
            action(module)


class _ActionsAfterImport(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[Any], None]]] = {}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.actions:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderWithActions(name, spec.loader)
        return spec


_finder = _ActionsAfterImport()


def after_import(name: str, action: Callable[[Any], None]) -> None:
    """Calls ``action(module)`` now if the module is imported, else after its import."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    _finder.actions.setdefault(name, []).append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
