# SPDX-License-Identifier: BSD-3-Clause
"""Counterpart of gpt_step.cpp in JAX: one device, and GSPMD over two devices of
one process. Prints nothing if JAX is not installed. The initial weights are
JAX's, so the losses are similar but not equal."""

import importlib.util
import os
import subprocess
import sys
import time

import harness

V, C, L, H, T, B = 4096, 256, 4, 8, 128, 4
STEPS, WARM_UP = 20, 3
DEVICES = {"gpt/single": 1, "gpt/tp": 2}


def make_parameters(jnp, rng):
    def linear(i, o):
        w = rng.uniform(-1, 1, (i, o)) / i**0.5
        return {"w": jnp.asarray(w, jnp.float32), "b": jnp.zeros(o)}

    table = lambda n: jnp.asarray(rng.normal(size=(n, C)), jnp.float32)
    norm = lambda: {"g": jnp.ones(C), "b": jnp.zeros(C)}
    block = lambda: {
        "ln1": norm(),
        "ln2": norm(),
        **{name: linear(C, C) for name in "qkvo"},
        "w1": linear(C, 4 * C),
        "w2": linear(4 * C, C),
    }
    return {
        "wte": table(V),
        "wpe": table(T),
        "blocks": [block() for _ in range(L)],
        "lnf": norm(),
        "head": linear(C, V)["w"],
    }


def make_loss(jax, jnp):
    mask = jnp.tril(jnp.ones((T, T), bool))
    dense = lambda x, p: x @ p["w"] + p["b"]

    def norm(x, p):
        centered = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return centered * scale * p["g"] + p["b"]

    def attention(x, p):
        heads = lambda y: y.reshape(B, T, H, C // H).transpose(0, 2, 1, 3)
        q, k, v = (heads(dense(x, p[name])) for name in "qkv")
        scores = q @ k.transpose(0, 1, 3, 2) / (C // H) ** 0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
        y = (weights @ v).transpose(0, 2, 1, 3).reshape(B, T, C)
        return dense(y, p["o"])

    def forward(p, ids):
        x = p["wte"][ids] + p["wpe"]
        for b in p["blocks"]:
            x = x + attention(norm(x, b["ln1"]), b)
            y = jax.nn.gelu(dense(norm(x, b["ln2"]), b["w1"]), approximate=False)
            x = x + dense(y, b["w2"])
        return norm(x, p["lnf"]) @ p["head"]

    def loss(p, ids):
        logs = jax.nn.log_softmax(forward(p, ids[:, :-1]))
        return -jnp.take_along_axis(logs, ids[:, 1:, None], -1).mean()

    return loss


def make_step(jax, jnp, loss_fn):
    """Implements AdamW like torch."""

    @jax.jit
    def step(p, m, v, t, ids):
        loss, g = jax.value_and_grad(loss_fn)(p, ids)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)

        def update(p, m, v):
            mean, square = m / (1 - 0.9**t), v / (1 - 0.999**t)
            return p * (1 - 1e-5) - 1e-3 * mean / (jnp.sqrt(square) + 1e-8)

        return jax.tree.map(update, p, m, v), m, v, loss

    return step


def make_shard(jax, devices):
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import numpy as np

    mesh = Mesh(np.array(jax.devices()[:devices]), ("tp",))

    def spec(path):
        keys = [getattr(p, "key", None) for p in path]
        module, name = (keys[-2], keys[-1]) if len(keys) > 1 else ("", keys[0])
        if module in ("q", "k", "v", "w1"):
            return P(None, "tp") if name == "w" else P("tp")
        if module in ("o", "w2") and name == "w":
            return P("tp", None)
        return P(None, "tp") if name == "head" else P()

    put = lambda path, x: jax.device_put(x, NamedSharding(mesh, spec(path)))
    return lambda tree: jax.tree_util.tree_map_with_path(put, tree)


def measure(name, steps):
    """Runs in its own process, because the number of devices is set only once."""
    import statistics

    devices = DEVICES[name]
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={devices}"
    )
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    shard = make_shard(jax, devices)
    p = shard(make_parameters(jnp, rng))
    m = shard(jax.tree.map(jnp.zeros_like, p))
    v = shard(jax.tree.map(jnp.zeros_like, p))
    step = make_step(jax, jnp, make_loss(jax, jnp))
    us = []
    for i in range(steps):
        ids = jnp.asarray(rng.integers(0, V, (B, T + 1)))
        begin = time.perf_counter()
        p, m, v, loss = step(p, m, v, i + 1.0, ids)
        loss.block_until_ready()
        us.append((time.perf_counter() - begin) * 1e6)
    warm = us[WARM_UP:] or us
    figure = statistics.median(warm)
    spread = harness.spread(warm, figure)
    harness.report(
        name, us=figure, first_us=us[0], loss=float(loss), spread=spread
    )


if __name__ == "__main__":
    options = harness.parse(__doc__)
    if importlib.util.find_spec("jax") is None:
        print("gpt_step_jax: JAX is not installed", file=sys.stderr)
        sys.exit()
    names = [name for name in DEVICES if name.startswith(options.only)]
    if options.only in DEVICES:
        measure(options.only, 1 if options.smoke else STEPS)
    else:
        for name in names:
            smoke = ["--smoke"] if options.smoke else []
            subprocess.run(
                [sys.executable, __file__, "--only", name, *smoke], check=True
            )
