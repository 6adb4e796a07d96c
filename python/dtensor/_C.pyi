"""Types of the C++ module."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroup, Store
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

_Layout = Sequence[Placement] | None

class Mesh: ...

class TorchWorld:
    def __init__(self, rank: int, size: int) -> None: ...
    def enter_threads(self) -> None: ...
    def end(self) -> None: ...

class EnteredWorld:
    def __init__(self, world: TorchWorld) -> None: ...

class _Scope:
    def enter(self) -> None: ...
    def leave(self) -> None: ...

class LossParallel(_Scope): ...
class ImplicitReplication(_Scope): ...

class MissingRuleCost:
    """Cost, on this rank, of the calls of an operator without a rule."""

    @property
    def calls(self) -> int: ...
    @property
    def collectives(self) -> int: ...
    @property
    def wire_bytes(self) -> float: ...

class OnMissingRule(_Scope):
    def costs(self) -> dict[str, MissingRuleCost]: ...

class ExplicitRedistribution:
    def enter(self, enable: bool, strict: bool, raises: bool) -> None: ...
    def leave(self) -> None: ...

class ContextParallel:
    def enter(
        self,
        mesh: DeviceMesh,
        buffers: list[torch.Tensor],
        seq_dims: list[int],
        no_restore_buffers: list[torch.Tensor],
        load_balance: bool | None,
    ) -> None: ...
    def leave(self) -> None: ...

class CollectiveRecorder(_Scope):
    def take(self) -> list[tuple[str, bool]]: ...

def argument_error(
    function: str, name: str, expected: str, given: object, advice: str
) -> TypeError: ...
def set_rotate_method(method: str) -> None: ...
def context_parallel_unshard(
    device_mesh: DeviceMesh, buffers: list[torch.Tensor], seq_dims: list[int]
) -> list[torch.Tensor]: ...
def set_python_names(names: dict[str, Any]) -> None: ...
def join_world(
    backend: str, store: Store, rank: int, size: int, timeout: timedelta
) -> None: ...
def leave_world() -> None: ...
def forget_world() -> None: ...
def in_own_world() -> bool: ...
def get_rank() -> int: ...
def get_world_size() -> int: ...
def make_mesh(
    device: torch.device,
    shape: Sequence[int],
    ranks: Sequence[int],
    names: Sequence[str],
    process_groups: Sequence[tuple[ProcessGroup, list[int]]],
) -> Mesh: ...
def c10d_backend(ranks: Sequence[int]) -> Any: ...
def run_ranks(ranks: int, function: Callable[[int], None]) -> None: ...
def is_dtensor(x: object, /) -> bool:
    """Returns whether the object is a distributed tensor.

    Corresponds to ``isinstance(x, DTensor)`` in ``torch.distributed.tensor``, and
    costs less.

    Args:
        x: any object.

    Example::

        >>> dtensor.is_dtensor(zeros(8, device_mesh=mesh))
        True
        >>> dtensor.is_dtensor(torch.zeros(8))
        False
    """

def from_local(
    local_tensor: torch.Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: _Layout = None,
    *,
    run_check: bool = False,
    shape: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    grad_placements: _Layout = None,
) -> torch.Tensor: ...
def add_methods(tensor_class: type) -> None: ...
def add_attributes(tensor_class: type) -> None: ...
def add_indexing(
    tensor_class: type, distributed_key: Callable[[torch.Tensor, Any], Any]
) -> None: ...
def from_spec(
    local: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: _Layout,
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None,
    requires_grad: bool,
) -> torch.Tensor: ...
def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: _Layout,
    src_data_rank: int | None,
) -> torch.Tensor: ...
def layout(self: torch.Tensor) -> str: ...
def chunk(size: int, parts: int, index: int, unit: int) -> tuple[int, int]: ...
def live_specs() -> int: ...
def zeros(
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: _Layout,
    dtype: torch.dtype | None,
    requires_grad: bool,
) -> torch.Tensor: ...

ones = zeros
empty = zeros
rand = zeros
randn = zeros

def full(
    size: Sequence[int],
    value: complex,
    device_mesh: DeviceMesh,
    placements: _Layout,
    dtype: torch.dtype | None,
    requires_grad: bool,
) -> torch.Tensor: ...
def default_generator() -> torch.Generator: ...
def get_random_state() -> torch.Tensor: ...
def set_random_state(state: torch.Tensor) -> None: ...
def manual_seed(seed: int) -> None: ...
def prepare_input(
    input_layouts: tuple[Placement, ...],
    desired_input_layouts: tuple[Placement, ...],
    mod: torch.nn.Module,
    inputs: tuple[Any, ...],
    device_mesh: DeviceMesh,
    /,
) -> torch.Tensor: ...
def prepare_output(
    output_layouts: tuple[Placement, ...],
    use_local_output: bool,
    mod: torch.nn.Module,
    outputs: torch.Tensor,
    device_mesh: DeviceMesh,
    /,
) -> torch.Tensor: ...
def register_sharding(name: str, function: Callable[..., Any]) -> None: ...
