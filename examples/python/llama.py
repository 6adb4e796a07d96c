# SPDX-License-Identifier: BSD-3-Clause
"""A Llama of Hugging Face's package transformers, sharded by its own tp_plan.

    torchrun --nproc-per-node 3 -m dtensor examples/python/llama.py [PATH]

PATH is a folder that save_pretrained() wrote, or a GGUF file. Without it, the
program makes a Llama with the heads and widths of SmolLM2-135M, two layers and
random weights. SmolLM2-135M has 9 heads that share 3 keys, and transformers gives each
rank whole heads, so the number of ranks is 1 or 3. Checks tokens, logits and
gradients against the model in one process, and prints the time of a token.

Tried with transformers 5.24.0. Without `-m dtensor` PyTorch's own DTensor runs.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import DistributedConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

TOKENS = 16


def save_random_llama():
    """Returns the folder that rank 0 has written a model to."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=2,
        num_attention_heads=9, num_key_value_heads=3, vocab_size=1536,
        rope_theta=100000.0, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2)
    LlamaForCausalLM(config).save_pretrained(folder[0])  # writes on rank 0
    dist.barrier()
    return Path(folder[0])


def load(path, **options):
    if path.suffix == ".gguf":
        options["gguf_file"], path = path.name, path.parent
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options)


def generate(model, ids):
    """Returns the tokens, their logits and the seconds that each one took."""
    def run(tokens):
        start = time.perf_counter()
        out = model.generate(
            ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
            output_logits=True, return_dict_in_generate=True)
        return out, time.perf_counter() - start

    first = run(1)[1]
    out, seconds = run(TOKENS)
    return out.sequences, torch.stack(out.logits), (seconds - first) / (TOKENS - 1)


def gradients(model, ids):
    model(ids, labels=ids).loss.backward()
    return {name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
            for name, p in model.named_parameters()}


def check(path):
    ids = torch.arange(1, 17).unsqueeze(0) * 7
    plain = load(path)
    sharded = load(path, distributed_config=DistributedConfig(tp_plan="auto"))
    names = [n for n, p in sharded.named_parameters() if isinstance(p, DTensor)]
    assert len(names) >= 7 * sharded.config.num_hidden_layers, names
    tokens, logits, seconds = generate(plain, ids)
    ours, our_logits, our_seconds = generate(sharded, ids)
    torch.testing.assert_close(our_logits, logits, rtol=1e-3, atol=1e-3)
    assert torch.equal(ours, tokens), (ours, tokens)
    ours = gradients(sharded, ids)
    for name, gradient in gradients(plain, ids).items():
        torch.testing.assert_close(
            ours[name], gradient, rtol=1e-3, atol=1e-5, msg=lambda m: f"{name}: {m}")
    if dist.get_rank() == 0:
        print(f"{DTensor.__name__}: {len(names)} sharded parameters; {TOKENS} tokens, their logits and "
              f"{len(ours)} gradients are those of one process; {our_seconds * 1e3:.1f} ms "
              f"per token, {seconds * 1e3:.1f} ms in one process")


def main():
    dist.init_process_group("gloo")
    if len(sys.argv) > 1:
        check(Path(sys.argv[1]))
    else:
        folder = save_random_llama()
        check(folder)
        if dist.get_rank() == 0:
            shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
