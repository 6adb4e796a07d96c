#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes weight files with other libraries, and their contents.

    tests/weights/write_files.py FOLDER

Exits with 77 if Python has no torch, safetensors or gguf.
"""

import json
import pathlib
import sys

try:
    import gguf
    import numpy
    import safetensors.torch
    import torch
except ImportError as error:
    print(error)
    sys.exit(77)

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool]
# Formats without a quantizer in the gguf package, which can only dequantize
# them.
BY_BLOCK = [gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K]
QUANTISED = [
    gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1,
    gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.BF16]
# Modules of the Python package transformers. Each of the two layers has the
# modules of layers.
MODULES = {
    "llama": {
        "": ["model.embed_tokens", "model.norm", "lm_head"],
        "model.layers": [
            "input_layernorm", "self_attn.q_proj", "self_attn.k_proj",
            "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]},
    "bert": {
        "": ["embeddings.word_embeddings", "embeddings.token_type_embeddings",
             "embeddings.position_embeddings", "embeddings.LayerNorm"],
        "encoder.layer": [
            "attention.self.query", "attention.self.key", "attention.self.value",
            "attention.output.dense", "attention.output.LayerNorm",
            "intermediate.dense", "output.dense", "output.LayerNorm"]},
    "gpt2": {
        "": ["transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head"],
        "transformer.h": [
            "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc",
            "mlp.c_proj"]}}


def plain_tensors():
    torch.manual_seed(1)
    tensors = {str(dtype): (torch.randn(5, 3, 4) * 3).to(dtype) for dtype in DTYPES}
    tensors["number"] = torch.tensor(2.5)
    tensors["row"] = torch.randn(7)
    tensors["none"] = torch.zeros(3, 0)
    return tensors


def write_safetensors(folder):
    tensors = plain_tensors()
    safetensors.torch.save_file(
        tensors, folder / "plain.safetensors", metadata={"made": "by hand"})
    # Contents in a form that C++ can unpickle, which does not support eight-bit
    # floats.
    truth = {name: t.float() if "float8" in name else t
             for name, t in tensors.items()}
    torch.save(truth, folder / "plain.safetensors.pt")


def write_index(folder):
    parts = folder / "parts"
    parts.mkdir(exist_ok=True)
    torch.manual_seed(2)
    tensors = {f"w{i}": torch.randn(4, i + 1) for i in range(4)}
    files = ["model-1.safetensors", "model-2.safetensors"]
    names = {name: files[i % 2] for i, name in enumerate(tensors)}
    for file in files:
        safetensors.torch.save_file(
            {name: tensors[name] for name in names if names[name] == file},
            parts / file)
    (parts / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": names}))
    torch.save(tensors, folder / "parts.pt")


def random_blocks(random, kind, rows, columns):
    """Returns random bytes as blocks; only the scales (halves) are random
    finite numbers."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(
        0, 256, (rows, columns // elements, size), dtype=numpy.uint8)
    halves = {gguf.GGMLQuantizationType.Q4_K: [0, 2],
              gguf.GGMLQuantizationType.Q6_K: [208]}[kind]
    for at in halves:
        scale = random.normal(size=blocks.shape[:2]).astype(numpy.float16)
        blocks[..., at:at + 2] = scale[..., None].view(numpy.uint8)
    return blocks.reshape(rows, -1)


def write_gguf(folder):
    random = numpy.random.default_rng(3)
    writer = gguf.GGUFWriter(folder / "quantised.gguf", "llama")
    writer.add_uint32("a.count", 7)
    writer.add_int8("a.small", -3)
    writer.add_float32("a.rate", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_string("a.name", "smol")
    writer.add_array("a.words", ["one", "two", ""])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.scores", [0.25, -1.5])
    truth = {}

    def add(name, stored, values, kind=None):
        writer.add_tensor(name, stored, raw_dtype=kind)
        truth[name] = torch.from_numpy(numpy.ascontiguousarray(values))

    for dtype in [numpy.float32, numpy.float16, numpy.float64, numpy.int32]:
        values = (random.normal(size=(3, 5)) * 4).astype(dtype)
        add(str(numpy.dtype(dtype)), values, values)
    for kind in QUANTISED:
        values = random.normal(size=(6, 96)).astype(numpy.float32)
        stored = gguf.quants.quantize(values, kind)
        add(kind.name, stored, gguf.quants.dequantize(stored, kind), kind)
    for kind in BY_BLOCK:
        stored = random_blocks(random, kind, 6, 512)
        add(kind.name, stored, gguf.quants.dequantize(stored, kind), kind)
    stored = gguf.quants.quantize(
        random.normal(size=(2, 32)).astype(numpy.float32),
        gguf.GGMLQuantizationType.Q5_1)
    writer.add_tensor(
        "unreadable", stored, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    torch.save(truth, folder / "quantised.gguf.pt")


def small_sizes(module):
    """Returns sizes of weight and bias, with 12 features, 20 hidden features, 3
    heads."""
    last = module.split(".")[-1]
    rows = {"word_embeddings": 10, "wte": 10, "token_type_embeddings": 2,
            "position_embeddings": 7, "wpe": 7}.get(last)
    if rows:
        return (rows, 12), None
    if last == "LayerNorm" or last.startswith("ln_"):
        return (12,), (12,)
    if last == "c_attn":
        return (36, 12), (36,)
    if last == "c_fc" or module.endswith("intermediate.dense"):
        return (20, 12), (20,)
    if module.endswith("mlp.c_proj") or (
            module.endswith(".output.dense") and "attention" not in module):
        return (12, 20), (12,)
    return (12, 12), (12,)


def write_small_models(folder):
    """Writes BERT and GPT-2 with two layers, as llama.cpp stores them, with
    matrices in half precision. Also writes GPT-2 as published, with the
    matrices of Conv1D."""
    random = numpy.random.default_rng(4)
    for name in ("bert", "gpt2"):
        arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
        library = gguf.get_tensor_name_map(arch, 2)
        writer = gguf.GGUFWriter(folder / f"small_{name}.gguf", name)
        truth = {}
        for module in modules_of(name):
            if module == "lm_head":
                continue  # the embedding is tied to the output
            for kind, sizes in zip(("weight", "bias"), small_sizes(module)):
                if sizes is None:
                    continue
                values = random.normal(size=sizes).astype(
                    numpy.float16 if len(sizes) > 1 else numpy.float32)
                full = f"{module}.{kind}"
                writer.add_tensor(library.get_name(full, (".weight", ".bias")), values)
                truth[full] = torch.from_numpy(values.astype(numpy.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        torch.save(truth, folder / f"small_{name}.pt")
    published = {
        full: t.T.contiguous() if ".c_" in full and t.dim() == 2 else t
        for full, t in truth.items()}
    safetensors.torch.save_file(published, folder / "small_gpt2.safetensors")


def modules_of(name):
    """Returns all modules of a model with two layers."""
    modules = MODULES[name]
    layers = next(key for key in modules if key)
    return modules[""] + [
        f"{layers}.{i}.{module}" for i in range(2) for module in modules[layers]]


def write_names(folder):
    """Writes the library's names, and a file of each architecture."""
    all_names = {}
    for name in MODULES:
        arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
        library = gguf.get_tensor_name_map(arch, 2)
        all_names[name] = {
            f"{module}.{kind}": library.get_name(f"{module}.{kind}", (".weight", ".bias"))
            for module in modules_of(name) for kind in ("weight", "bias")}
        writer = gguf.GGUFWriter(folder / f"{name}.gguf", name)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        for tensor in ("token_embd.weight", "output.weight"):
            writer.add_tensor(tensor, numpy.zeros((2, 2), numpy.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    (folder / "names.json").write_text(json.dumps(all_names))


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder)
    write_index(folder)
    write_gguf(folder)
    write_names(folder)
    write_small_models(folder)


if __name__ == "__main__":
    main()
