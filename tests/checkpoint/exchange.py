#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Exchanges checkpoints with torch.distributed.checkpoint, in both directions.

    tests/checkpoint/exchange.py write FOLDER   # from three ranks, sharded
    tests/checkpoint/exchange.py read FOLDER    # on one rank and on two
    tests/checkpoint/exchange.py full FOLDER    # full tensors, safetensors only
    tests/checkpoint/exchange.py run FOLDER     # a training run: compares
        # FOLDER/ours with FOLDER/truth.pt, and writes it again to FOLDER/python

Exits with 77 if Python has no torch or safetensors, and with 1 if a value is
wrong.
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

# The tensors of tests/checkpoint/python_test.cpp.
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


# Exits without the interpreter's shutdown, because LibTorch's threads may
# outlive objects that they use.
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


# Reads each file with safetensors alone. Every element of every tensor must be
# in exactly one file.
def expect_pieces(folder, truth):
    counts = {name: torch.zeros(value.shape) for name, value in truth.items()}
    pieces = 0
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            info = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in file.keys():
                piece = file.get_tensor(name)
                where = tuple(
                    slice(begin, begin + size) for begin, size in
                    zip(info[name]["saved_offsets"], piece.shape))
                expect(piece, truth[name][where], f"{name} in {path}")
                counts[name][where] += 1
                pieces += 1
    for name, count in counts.items():
        expect(count, torch.ones_like(count), f"how often there is {name}")
    print(f"{pieces} pieces")


def read(folder):
    state = {name: torch.zeros_like(value_of(name)) for name in TENSORS}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
    for name, found in state.items():
        expect(found, value_of(name), name)
    expect_pieces(folder, {name: value_of(name) for name in TENSORS})
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


# Returns the names and full tensors of a run.
def truth_of(folder):
    return torch.load(pathlib.Path(folder) / "truth.pt", weights_only=False)


def write_anew(rank, ranks, port, folder):
    mesh = begin(rank, ranks, port)
    truth = truth_of(folder)
    state = {name: spread(torch.zeros_like(value), mesh, i % 2)
             for i, (name, value) in enumerate(truth.items())}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(f"{folder}/ours"))
    for name, found in state.items():
        expect(found.full_tensor(), truth[name], f"{name} on {ranks} ranks")
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(
        f"{folder}/python", save_distributed=True))
    end()


def run(folder):
    truth = truth_of(folder)
    reader = HuggingFaceStorageReader(f"{folder}/ours")
    names = set(reader.read_metadata().state_dict_metadata)
    if names != set(truth):
        print(f"differ: {sorted(names ^ set(truth))}")
        sys.exit(1)
    state = {name: torch.zeros_like(value) for name, value in truth.items()}
    dcp.load(state, storage_reader=reader, no_dist=True)
    for name, found in state.items():
        expect(found, truth[name], name)
    expect_pieces(f"{folder}/ours", truth)
    spawn(write_anew, 3, folder)


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
        {"read": read, "full": full, "run": run}[mode](where)
