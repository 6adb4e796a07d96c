#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the seeds of fuzz targets: small files of every kind, launch variables
and messages.

    tests/fuzz/make_seeds.py
"""

import io
import json
import pathlib
import struct
import zipfile

SEEDS = pathlib.Path(__file__).resolve().parent / "seeds"


def write(target, name, data):
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def safetensors(header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_safetensors():
    one = {"w": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
           "v": {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]},
           "n": {"dtype": "U8", "shape": [3, 0], "data_offsets": [10, 10]}}
    metadata = {
        "format": "pt",
        "DCP_SHARDING_INFO": json.dumps(
            {name: {"saved_offsets": [0] * len(about["shape"])}
             for name, about in one.items()}),
        "DTENSOR_CHECKSUMS": json.dumps(
            {"block": 4, "xxh3": {name: "0" * 16 for name in one}})}
    data = bytes(range(10))
    write("safetensors", "plain", safetensors(one, data))
    pieces = safetensors({"__metadata__": metadata, **one}, data)
    write("safetensors", "pieces", pieces)
    write("safetensors", "header", pieces[8:-10] + b"\0" + data)
    write("safetensors", "four_bits", safetensors(
        {"q": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]},
         "c": {"dtype": "C64", "shape": [1], "data_offsets": [2, 10]}}, data))


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(pairs, tensors, data):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def tensor(name, sizes, kind, offset):
    return (text(name) + struct.pack("<I", len(sizes)) +
            b"".join(struct.pack("<Q", size) for size in sizes) +
            struct.pack("<IQ", kind, offset))


def write_gguf():
    pairs = [text("general.architecture") + struct.pack("<I", 8) + text("llama"),
             text("general.alignment") + struct.pack("<II", 4, 32),
             text("f") + struct.pack("<If", 6, 0.5),
             text("d") + struct.pack("<Id", 12, 0.5),
             text("b") + struct.pack("<IB", 7, 1),
             text("u") + struct.pack("<IQ", 10, 1 << 40)]
    for kind, form in [(0, "B"), (1, "b"), (3, "h"), (5, "i"), (6, "f"), (7, "B")]:
        pairs.append(text(f"a{kind}") + struct.pack(f"<IIQ2{form}", 9, kind, 2, 1, 0))
    pairs.append(text("a8") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text(""))
    tensors = [tensor("w", [2, 3], 0, 0), tensor("n", [0], 1, 32),
               tensor("q", [32], 8, 32), tensor("k", [256], 14, 96)]
    data = bytes(range(256)) * 2
    write("gguf", "pairs", gguf(pairs, [], b""))
    write("gguf", "tensors", gguf(pairs[:2], tensors, data[:96 + 210]))
    for kind, size, count in [(2, 18, 32), (3, 20, 32), (12, 144, 256), (7, 24, 32)]:
        write("gguf", f"type_{kind}", gguf(
            [], [tensor("w", [count], kind, 0)], data[:size]))


def write_archive():
    meta = {"dtype": 7, "sizes": [{"as_int": 2}, {"as_int": 3}],
            "strides": [{"as_int": 1}, {"as_int": 2}],
            "storage_offset": {"as_int": 1}}
    table = json.dumps({"config": {
        "w": {"path_name": "weight_0", "use_pickle": False, "tensor_meta": meta},
        "v": {"path_name": "weight_0", "use_pickle": False, "tensor_meta": {
            **meta, "dtype": 13, "strides": [{"as_int": 0}, {"as_int": 1}]}},
        "p": {"path_name": "weight_0", "use_pickle": True, "tensor_meta": meta}}},
        separators=(",", ":"))
    write("archive", "table", table)
    for name, kind in [("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)]:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for record, data in [("m/version", b"3\n"), ("m/byteorder", b"little"),
                                 ("m/data/weights/weight_0", bytes(range(64)))]:
                archive.writestr(zipfile.ZipInfo(record), data)
            archive.writestr(
                zipfile.ZipInfo("m/data/weights/weights_config.json"), table, kind)
        write("archive", name, file.getvalue())


def write_checkpoint():
    write("checkpoint", "manifest", json.dumps({
        "format": "dtensor checkpoint", "version": 1, "ranks": 2,
        "files": {"a": {"bytes": 70, "header": "0123456789abcdef"}},
        "extra": {"step": 3, "rate": 0.5, "name": "run", "done": False,
                  "loss": {"double": "inf"}},
        "extra_tensors": ["random"], "checksum": "0123456789abcdef"}))
    write("checkpoint", "without_files", json.dumps({
        "format": "dtensor checkpoint", "version": 1, "ranks": 1, "files": {},
        "extra": {}, "checksum": ""}))
    write("checkpoint", "index", json.dumps(
        {"metadata": {"total_size": 4}, "weight_map": {"w": "a"}}))


def write_launch_env():
    for name, variables in {
            "torchrun": {
                "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1",
                "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "oak",
                "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "blue",
                "TORCHELASTIC_RESTART_COUNT": "2",
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "DTENSOR_RANKS_PER_PROCESS": "2"},
            "openmpi": {
                "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "17"},
            "pmi": {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4",
                    "PMI_ID": "0"},
            "slurm": {"SLURM_PROCID": "1", "SLURM_NTASKS": "4",
                      "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1",
                      "SLURM_JOB_ID": "77"},
            "size_alone": {"WORLD_SIZE": "2"}}.items():
        write("launch_env", name, "".join(
            f"{variable}={value}\n" for variable, value in variables.items()))


def longs(*values):
    return b"".join(struct.pack("<q", value) for value in values)


def short_texts(*values):
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


# The first letter selects the message (rendezvous_fuzz.cpp).
def write_rendezvous():
    end = b"oak\nhere\n4711 12\n"
    # all_reduce of f32[4]; all_gather of f32[2, 4]; a tensor assumed by a rank,
    # which also had two errors
    reduction = longs(
        0, 1, 6, 1, 4, -1, 0, 0, 0, -1, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0)
    gathering = longs(
        1, 1, 6, 2, 2, 4, -1, 0, 0, 0, -1, 2, 2, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0)
    noted = reduction[:-40] + longs(
        5, 1, 1, 1, 8, 1, 4, 4) + b"S(0)" + longs(6, 0, 2, 6) + b"no row"
    for name, message in {
            "greeting": b"0dtensor 0.2.0\njob \n2 ranks\n" + end,
            "rest_of_greeting": b"1" + end,
            "address": b"2oak:29500",
            "address_6": b"2[::1]:80",
            "request": b"3" + longs(1),
            "note": b"4n29500",
            "refusal": b"4rprocess 12 is already registered as rank 1",
            "file": b"5" + short_texts(b"/key", b"value", b"+", b""),
            "table": b"6  sl  local_address rem_address   st\n"
                     b"   0: 0101000A:733C 0201000A:8000 01 0 0\n",
            "call": b"7" + reduction,
            "noted": b"7" + noted,
            "two_reductions": b"8" + reduction,
            "two_gatherings": b"8" + gathering}.items():
        write("rendezvous", name, message)


def main():
    write_safetensors()
    write_gguf()
    write_archive()
    write_checkpoint()
    write_launch_env()
    write_rendezvous()


if __name__ == "__main__":
    main()
