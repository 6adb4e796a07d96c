# SPDX-License-Identifier: BSD-3-Clause
"""The engine's view of torch.distributed: this rank's world and its meshes.

Process groups and meshes are PyTorch's. The engine communicates over its own
shared memory if all ranks are processes of one host and their backend is gloo,
otherwise over the process groups. ``DTENSOR_BACKEND`` selects another transport:
``torch`` stands for the process groups, and ``auto``, ``shm`` and ``gloo`` for the
engine's backends. The ranks of the engine's backends rendezvous in PyTorch's store.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, _mesh_resources

from dtensor import _C, python_groups, random_numbers


@dataclass
class World:
    """The world of one default process group."""

    group: Any
    #: The engine's world over the process groups; None for the engine's own.
    over_groups: _C.TorchWorld | None
    #: The engine's meshes, by the properties that equal DeviceMeshes share.
    meshes: dict[tuple, _C.Mesh] = field(default_factory=dict)


class _ThreadState(threading.local):
    is_rank: bool = False
    world: World | None = None
    entered: _C.EnteredWorld | None = None


_thread = _ThreadState()
_lock = threading.Lock()
#: Worlds of processes, which all threads share.
_process_world: World | None = None
#: Worlds that this process has made; ranks make them in the same order.
_worlds_made = 0


def _this_host() -> str:
    """Returns a text that is equal for processes that can share memory."""
    boot = ""
    if os.path.exists("/proc/sys/kernel/random/boot_id"):
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    memory = os.stat("/dev/shm").st_dev if os.path.exists("/dev/shm") else 0
    return f"{socket.gethostname()} {boot} {memory}"


def _on_one_host(store: dist.Store, rank: int, size: int) -> bool:
    if rank == 0:
        store.set("host", _this_host())
    if store.get("host").decode() == _this_host():
        store.add("ranks_there", 1)
    if store.add("ranks", 1) == size:
        store.set("is_one", str(store.add("ranks_there", 0) == size))
    return store.get("is_one") == b"True"


def _are_threads() -> bool:
    """Returns true if ranks are threads, as in PyTorch's own tests."""
    return not isinstance(c10d._world, c10d._World)


def _choose_backend(group: Any, store: dist.Store) -> str:
    if _are_threads():  # the engine's worlds of processes have one rank each
        return "torch"
    backend = os.environ.get("DTENSOR_BACKEND", "")
    if backend:
        return backend
    size = dist.get_world_size()
    may_share = dist.get_backend(group) == "gloo" and size > 1
    if may_share and not torch.accelerator.is_available():
        return "auto" if _on_one_host(store, dist.get_rank(), size) else "torch"
    return "torch"


def _timeout_of(group: Any) -> timedelta:
    backend = group._get_backend(torch.device("cpu"))
    return getattr(backend.options, "_timeout", c10d.default_pg_timeout)


def _make_world(group: Any) -> World:
    global _worlds_made
    _worlds_made += 1
    rank, size = dist.get_rank(), dist.get_world_size()
    if dist.get_backend(group) == "dtensor":
        return World(group, None)
    store = dist.PrefixStore(f"dtensor/{_worlds_made}", c10d._get_default_store())
    backend = _choose_backend(group, store)
    if backend != "torch":
        _C.join_world(backend, store, rank, size, _timeout_of(group))
        return World(group, None)
    world = _C.TorchWorld(rank, size)
    if not _are_threads():
        world.enter_threads()
    return World(group, world)


def in_rank_thread() -> bool:
    """Returns true if this thread is a rank of run_world()."""
    return _thread.is_rank


def set_rank_thread(is_rank: bool) -> None:
    _thread.is_rank = is_rank
    _thread.world = None


def enter_world() -> World:
    """Makes this thread a rank, with its number in torch.distributed."""
    global _process_world
    group = c10d._get_default_group()
    world = _thread.world
    if world is not None and world.group is group:
        return world
    if in_rank_thread():
        world = World(group, None)
    else:
        with _lock:
            is_new = _process_world is None or _process_world.group is not group
            if is_new:
                _process_world = _make_world(group)
            world = _process_world
        _thread.entered = None
        if world.over_groups is not None:
            _thread.entered = _C.EnteredWorld(world.over_groups)
            if is_new and dist.get_backend(group) != "fake":
                random_numbers.share_seed(c10d._get_default_store())
    _thread.world = world
    return world


def leave_world() -> None:
    """Ends this rank's world. DTensors made in it must not be used again."""
    global _process_world
    world = _thread.world
    _thread.world = None
    _thread.entered = None
    if world is None or in_rank_thread():
        return
    if world.over_groups is not None:
        world.over_groups.end()
    elif _C.in_own_world():
        _C.leave_world()
    if _process_world is world:
        _process_world = None


def new_group(ranks: list[int]) -> Any:
    """Makes the process group of a group that the engine needs."""
    return dist.new_group(list(ranks), use_local_synchronization=True)


def current_mesh(device_mesh: DeviceMesh | None) -> DeviceMesh:
    """Returns the mesh, by default that of ``with device_mesh:``."""
    if device_mesh is None:
        device_mesh = _mesh_resources.get_current_mesh()
    if not isinstance(device_mesh, DeviceMesh):
        raise TypeError(
            f"[device_mesh] expected a DeviceMesh, got {type(device_mesh)}. "
            "Pass a mesh from init_device_mesh()."
        )
    return device_mesh


def _engine_device(device_type: str) -> torch.device:
    if device_type == "cpu":
        return torch.device("cpu")
    return torch.device(device_type, torch.accelerator.current_device_index())


def _ranks_along(device_mesh: DeviceMesh, dim: int) -> list[int]:
    index: list[Any] = list(device_mesh.get_coordinate())
    index[dim] = slice(None)
    return device_mesh.mesh[tuple(index)].tolist()


def _groups_of(device_mesh: DeviceMesh) -> list[Any]:
    """Returns the process group of each mesh dimension. Returns no groups for a
    mesh that was loaded from a file, if this process has not made its groups."""
    groups = []
    for dim in range(device_mesh.ndim):
        try:
            group = device_mesh.get_group(dim)
        except RuntimeError:  # no group of that name
            return []
        members = dist.get_process_group_ranks(group)
        if set(members) != set(_ranks_along(device_mesh, dim)):
            return []  # another mesh's
        groups.append(group)
    return groups


def engine_mesh(device_mesh: DeviceMesh) -> _C.Mesh:
    """Returns the engine's mesh of a DeviceMesh; equal DeviceMeshes share a mesh."""
    device_mesh = current_mesh(device_mesh)
    world = enter_world()
    ranks = device_mesh.mesh
    shape, members = tuple(ranks.shape), tuple(ranks.flatten().tolist())
    names = tuple(device_mesh.mesh_dim_names or ())
    groups: list[Any] = []
    if world.over_groups is not None and device_mesh.get_coordinate() is not None:
        groups = _groups_of(device_mesh)
    key = (
        device_mesh.device_type,
        shape,
        members,
        names,
        tuple(group.group_name for group in groups),
    )
    mesh = world.meshes.get(key)
    if mesh is None:
        mesh = _C.make_mesh(
            _engine_device(device_mesh.device_type),
            shape,
            members,
            names,
            [(group, dist.get_process_group_ranks(group)) for group in groups],
        )
        world.meshes[key] = mesh
    device_mesh._dt_mesh = mesh
    return mesh


def make_spec(mesh, placements, shape, stride, dtype):
    """Makes PyTorch's description of a DTensor's layout."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(torch.Size(shape), tuple(stride), dtype)
    return DTensorSpec(mesh, placements, tensor_meta=meta)


def _without_engine_mesh(getstate):
    """Excludes the engine's mesh from pickles and copies of a DeviceMesh."""

    def __getstate__(self):
        state = getstate(self) if getstate is not None else self.__dict__
        return {k: v for k, v in state.items() if k != "_dt_mesh"}

    return __getstate__


def _leaving(destroy):
    def destroy_process_group(group=None):
        if group is None or group is dist.group.WORLD:
            leave_world()
        destroy(group)

    destroy_process_group.__doc__ = destroy.__doc__
    return destroy_process_group


def _entering(init):
    def init_process_group(*args, **kwargs):
        init(*args, **kwargs)
        enter_world()

    init_process_group.__doc__ = init.__doc__
    return init_process_group


def install() -> None:
    """Connects the engine to PyTorch's meshes and process groups."""
    from torch.distributed.tensor import placement_types

    from dtensor import placements

    _C.set_python_names(
        {
            "Shard": placement_types.Shard,
            "Replicate": placement_types.Replicate,
            "Partial": placement_types.Partial,
            "StridedShard": placement_types._StridedShard,
            "UnitShard": placements.Shard,
            "UnitStridedShard": placements._StridedShard,
            "plain_placement": placements.plain_placement,
            "engine_mesh": engine_mesh,
            "current_mesh": current_mesh,
            "new_group": new_group,
            "python_group": python_groups.python_group,
            "make_spec": make_spec,
        }
    )
    getstate = DeviceMesh.__dict__.get("__getstate__")
    DeviceMesh.__getstate__ = _without_engine_mesh(getstate)
    for name, wrapped in (
        ("destroy_process_group", _leaving(dist.destroy_process_group)),
        ("init_process_group", _entering(dist.init_process_group)),
    ):
        setattr(dist, name, wrapped)
        setattr(c10d, name, wrapped)
    if dist.is_initialized():
        enter_world()
