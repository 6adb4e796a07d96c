#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints by torch.distributed.checkpoint: written for us, and ours read.

    tests/checkpoint/exchange.py write FOLDER   # by three ranks, in pieces
    tests/checkpoint/exchange.py read FOLDER    # by one rank and by two
    tests/checkpoint/exchange.py full FOLDER    # whole, by safetensors alone

Ends with 77 where Python has no torch or safetensors, with 1 for a value that
is not the one that it should be.
"""

import json
import os
import pathlib
import socket
import sys

try:
    import safetensors
    import safetensors.torch
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    from torch.distributed.checkpoint import (
        HuggingFaceStorageReader, HuggingFaceStorageWriter)
    from torch.distributed.tensor import (
        Replicate, Shard, distribute_tensor, init_device_mesh)
except ImportError as error:
    print(error)
    sys.exit(77)

# As tests/checkpoint/python_test.cpp has them.
TENSORS = {
    "even": ([8, 12], torch.float64),
    "uneven": ([7, 5, 2], torch.float32),
    "half": ([5, 3], torch.bfloat16),
    "flags": ([5, 3], torch.bool),
    "counts": ([6], torch.int64),
    "number": ([], torch.float32),
    "large": ([1200, 1000], torch.float32),
}


def value_of(name):
    sizes, dtype = TENSORS[name]
    count = 1
    for size in sizes:
        count *= size
    numbers = torch.arange(count) * 37 % 101 - 50
    numbers = numbers > 0 if dtype == torch.bool else numbers.to(dtype)
    return numbers.reshape(sizes)


def expect(found, truth, what):
    if found.dtype != truth.dtype or not torch.equal(found, truth):
        print(f"{what} is {found}, and should be {truth}")
        sys.exit(1)


def begin(rank, ranks, port):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    return init_device_mesh("cpu", (ranks,))


# LibTorch's threads may outlive what they use where the interpreter ends.
def end():
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def spread(value, mesh, dim):
    layout = [Shard(dim)] if value.dim() > dim else [Replicate()]
    return distribute_tensor(value, mesh, layout)


def write(rank, ranks, port, folder):
    mesh = begin(rank, ranks, port)
    state = {name: spread(value_of(name), mesh, i % 2)
             for i, name in enumerate(TENSORS)}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(
        folder, save_distributed=True))
    end()


def read_by_two(rank, ranks, port, folder):
    mesh = begin(rank, ranks, port)
    state = {name: spread(torch.zeros_like(value_of(name)), mesh, (i + 1) % 2)
             for i, name in enumerate(TENSORS)}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder))
    for name, found in state.items():
        expect(found.full_tensor(), value_of(name), f"{name} on two ranks")
    end()


def read(folder):
    state = {name: torch.zeros_like(value_of(name)) for name in TENSORS}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
    for name, found in state.items():
        expect(found, value_of(name), name)
    pieces = 0
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            info = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in file.keys():
                piece = file.get_tensor(name)
                where = tuple(
                    slice(begin, begin + size) for begin, size in
                    zip(info[name]["saved_offsets"], piece.shape))
                expect(piece, value_of(name)[where], f"{name} in {path}")
                pieces += 1
    print(f"{pieces} pieces")
    spawn(read_by_two, 2, folder)


def full(folder):
    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    found = {}
    if index.exists():
        places = json.loads(index.read_text())["weight_map"]
        for name, file in places.items():
            found[name] = safetensors.torch.load_file(folder / file)[name]
    else:
        found = safetensors.torch.load_file(folder / "model.safetensors")
    if set(found) != set(TENSORS):
        print(f"has {sorted(found)}")
        sys.exit(1)
    for name, value in found.items():
        expect(value, value_of(name), name)


def spawn(function, ranks, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(function, args=(ranks, port, folder), nprocs=ranks)


if __name__ == "__main__":
    mode, where = sys.argv[1:]
    if mode == "write":
        spawn(write, 3, where)
    else:
        {"read": read, "full": full}[mode](where)
