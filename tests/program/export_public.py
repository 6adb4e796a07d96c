#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Exports a public model from the package `transformers`, and writes Python's
results.

export_public.py minilm|smollm2 f32|f64 MODELS FOLDER writes FOLDER/model.pt2
and FOLDER/model.pt. These have inputs and outputs of several sizes; for float32
also the outputs of the same model in float64. For float64 they have the losses
of ten steps of fine-tuning, and FOLDER/changes.safetensors has the changes of
each parameter. Exits with 77 without the model or a package.
"""
import copy
import pathlib
import sys

name, dtype_name, models, folder = sys.argv[1:]
models, folder = pathlib.Path(models), pathlib.Path(folder)
try:
    import gguf
    import numpy
    import safetensors.torch
    import torch
    from gguf.quants import dequantize
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM
except ImportError as error:
    print(error)
    sys.exit(77)
dtype = {"f32": torch.float32, "f64": torch.float64}[dtype_name]
torch.manual_seed(0)


def load(model, weights, tied=(), unused=()):
    """Loads the weights. Every parameter must be loaded, and every weight used."""
    keys = model.load_state_dict(weights, strict=False)
    assert set(keys.missing_keys) <= set(tied), keys
    assert set(keys.unexpected_keys) <= set(unused), keys


class MiniLM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        path = models / "minilm"
        config = BertConfig.from_json_file(path / "config.json")
        config._attn_implementation = "sdpa"
        self.model = BertModel(config, add_pooling_layer=False)
        weights = safetensors.torch.load_file(path / "model.safetensors")
        load(self.model, weights, unused=[
            "embeddings.position_ids", "pooler.dense.weight",
            "pooler.dense.bias"])

    def forward(self, input_ids, attention_mask):
        return self.model(
            input_ids=input_ids,
            attention_mask=attention_mask).last_hidden_state


def names_of(layer):
    """Returns names in GGUF -> names in transformers."""
    parts = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj"}
    return {f"blk.{layer}.{a}.weight": f"model.layers.{layer}.{b}.weight"
            for a, b in parts.items()}


class SmolLM2(torch.nn.Module):
    def __init__(self):
        super().__init__()
        reader = gguf.GGUFReader(models / "smollm2.gguf")

        def about(key):
            return reader.fields["llama." + key].contents()

        heads = about("attention.head_count")
        key_heads = about("attention.head_count_kv")
        config = LlamaConfig(
            hidden_size=about("embedding_length"),
            num_hidden_layers=about("block_count"),
            num_attention_heads=heads, num_key_value_heads=key_heads,
            intermediate_size=about("feed_forward_length"),
            vocab_size=about("vocab_size"), tie_word_embeddings=True,
            rms_norm_eps=about("attention.layer_norm_rms_epsilon"),
            rope_theta=about("rope.freq_base"), max_position_embeddings=512)
        config._attn_implementation = "sdpa"
        self.lm = LlamaForCausalLM(config)
        names = {"token_embd.weight": "model.embed_tokens.weight",
                 "output_norm.weight": "model.norm.weight"}
        for layer in range(config.num_hidden_layers):
            names.update(names_of(layer))
        weights = {}
        for tensor in reader.tensors:
            if tensor.name not in names:
                continue
            plain = tensor.data if tensor.tensor_type == 0 else dequantize(
                tensor.data, tensor.tensor_type)
            sizes = [int(size) for size in reversed(tensor.shape)]
            value = torch.from_numpy(
                numpy.array(plain, dtype=numpy.float32)).reshape(sizes)
            for part, count in (("attn_q", heads), ("attn_k", key_heads)):
                if part in tensor.name:  # pairs of features are adjacent in the file
                    value = value.view(count, -1, 2, sizes[1]).transpose(
                        1, 2).reshape(sizes)
            weights[names[tensor.name]] = value
        load(self.lm, weights, tied=["lm_head.weight"])
        assert self.lm.lm_head.weight is self.lm.model.embed_tokens.weight

    def forward(self, input_ids, attention_mask):
        return self.lm(input_ids=input_ids, attention_mask=attention_mask,
                       use_cache=False).logits


path = models / {"minilm": "minilm", "smollm2": "smollm2.gguf"}[name]
if not path.exists():
    print(f"no {path}; `make models` brings it")
    sys.exit(77)
model = {"minilm": MiniLM, "smollm2": SmolLM2}[name]().to(dtype).eval()


def inputs_of(batch, length):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, max(1, length // 2):] = 0
    return torch.randint(5, 5000, (batch, length)), mask


def loss_of(outputs, ids):
    if name == "minilm":
        return (outputs * outputs).mean()
    return torch.nn.functional.cross_entropy(
        outputs[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


batch, length = torch.export.Dim("batch", max=64), torch.export.Dim(
    "length", min=2, max=512)
sizes = {0: batch, 1: length}
program = torch.export.export(
    model, inputs_of(3, 9),
    dynamic_shapes={"input_ids": sizes, "attention_mask": sizes})
torch.export.save(program, folder / "model.pt2")
runs = []
exact = copy.deepcopy(model).double()
with torch.no_grad():
    for batch, length in ((3, 9), (1, 16), (2, 5)):
        inputs = inputs_of(batch, length)
        runs.append({"inputs": list(inputs), "output": model(*inputs),
                     "exact": exact(*inputs)})
truth = {"runs": runs}
if dtype == torch.float64:
    ids, mask = inputs_of(2, 8)
    rate = {"minilm": 0.01, "smollm2": 1e-5}[name]
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(model(ids, mask), ids)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    truth.update({"ids": ids, "mask": mask, "losses": torch.stack(losses),
                  "rate": torch.tensor(rate, dtype=torch.float64)})
    changes = {n: (p - before).float() for (n, p), before in zip(
        model.named_parameters(), exact.parameters(), strict=True)}
    safetensors.torch.save_file(
        {n: c.detach().contiguous() for n, c in changes.items()},
        folder / "changes.safetensors")
torch.save(truth, folder / "model.pt")
