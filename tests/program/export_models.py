#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Exports small programs, with the results of Python.

export_models.py FOLDER writes NAME.pt2 for each model below, and NAME.pt with
its inputs, outputs, gradients of the sum of all outputs, and buffers after the
call.
"""
import dataclasses
import pathlib
import sys
import zipfile

import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export, save

folder = pathlib.Path(sys.argv[1])
torch.manual_seed(1)


def tensors_in(tree):
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def write(name, model, args, kwargs=None, dynamic=None, other=(),
          decompose=False, strict=False, run_exported=False):
    """Writes a program. `other` has inputs of other sizes, with their results.
    For a decomposed program no gradients are written: the program updates
    buffers after they are saved for the backward pass, so Python has no gradients."""
    kwargs = kwargs or {}
    program = export(model, args, kwargs, dynamic_shapes=dynamic, strict=strict)
    if decompose:
        program = program.run_decompositions()
    save(program, folder / f"{name}.pt2")
    call = program.module() if run_exported else model
    runs = []
    for inputs, named in [(args, kwargs), *((o, {}) for o in other)]:
        call.zero_grad()
        outputs = tensors_in(call(*inputs, **named))
        total = sum(o.double().sum() for o in outputs if o.is_floating_point())
        has_gradients = not decompose and getattr(total, "requires_grad", False)
        if has_gradients:
            total.backward()
        runs.append({
            "inputs": tensors_in((inputs, named)),
            "outputs": [o.detach() for o in outputs],
            "gradients": {n: p.grad.clone() for n, p in call.named_parameters()
                          if has_gradients and p.grad is not None},
            "buffers": {n: b.clone() for n, b in call.named_buffers()},
        })
    torch.save(runs, folder / f"{name}.pt")


class Mixed(nn.Module):
    """Has changing buffers, constants, several inputs and outputs, and sizes."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 6)
        self.b = nn.Linear(6, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("shift", torch.randn(4), persistent=False)
        self.scales = torch.randn(3)

    def forward(self, x, flag=True, *, scale=2.0, more=None):
        self.count.add_(1)
        h = torch.relu(self.a(x))
        n = h.shape[0]
        y = self.b(h) * scale + torch.arange(n)[:, None] + self.shift
        p, q = torch.split(y, [2, 2], 1)
        u = torch.cat([q, p], 1) * self.scales.sum()
        if more is not None:
            u = u + more["k"]
        with torch.no_grad():
            size = (p * p).sum()
        return {"u": u.view(n, 2, 2) / size, "s": (p.sum(), n * 2)}


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (
            nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, mask):
        y = nn.functional.scaled_dot_product_attention(
            self.split(self.q(x)), self.split(self.k(x)),
            self.split(self.v(x)), attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.n1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.n2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x, mask):
        x = x + self.attn(self.n1(x), mask)
        return x + self.down(nn.functional.gelu(self.up(self.n2(x))))


class Causal(Attention):
    def forward(self, x):
        y = nn.functional.scaled_dot_product_attention(
            self.split(self.q(x)), self.split(self.k(x)),
            self.split(self.v(x)), is_causal=True)
        return x + self.o(y.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """A GPT with a tied head."""

    def __init__(self, vocabulary=32, width=24, heads=6, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(16, width)
        self.blocks = nn.ModuleList(
            Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        length = ids.shape[1]
        places = torch.arange(length, device=ids.device)
        mask = places[:, None] >= places
        x = self.tokens(ids) + self.places(places)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class Normed(nn.Module):
    """Has buffers that a functional graph returns."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 16, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.conv(x))).flatten(1))


class Views(nn.Module):
    """Has weights that are views of other weights, and weights of other dtypes."""

    def __init__(self):
        super().__init__()
        base = torch.randn(6, 8)
        self.w = nn.Parameter(base)
        self.register_buffer("t", base.clone().t())
        self.register_buffer("row", base.clone()[2])
        self.register_buffer("coarse", torch.randn(8).bfloat16())
        self.register_buffer("mask", torch.rand(8) > 0.5)
        self.register_buffer("one", torch.tensor(3))
        self.register_buffer("none", torch.randn(0, 8))

    def forward(self, x):
        y = x @ self.w @ self.t + self.coarse[:6].float() * self.one
        return torch.where(self.mask[:6], y, self.row[:6]), self.none.sum()


class Random(nn.Module):
    """Random operators, as many of each family; sizes stay 6 x 5."""

    def __init__(self, seed, steps=200):
        super().__init__()
        self.order = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterList(
            torch.randn(5, 5, dtype=torch.double) / 3 for _ in range(8))
        self.biases = nn.ParameterList(
            torch.randn(5, dtype=torch.double) / 3 for _ in range(8))
        self.steps = [
            (self.draw(len(self.families)), self.draw(4), self.draw(4),
             self.draw(8)) for _ in range(steps)]

    def draw(self, count):
        return int(torch.randint(count, (), generator=self.order))

    families = [
        lambda x, y, w, b: x + y * 0.5,
        lambda x, y, w, b: torch.sigmoid(x) * y,
        lambda x, y, w, b: torch.where(x > y, x, -y),
        lambda x, y, w, b: torch.maximum(x, y).clamp(-2, 2),
        lambda x, y, w, b: nn.functional.linear(x, w, b),
        lambda x, y, w, b: x @ w + y,
        lambda x, y, w, b: torch.addmm(b, x, w.t()),
        lambda x, y, w, b: x @ (y.t() @ y) / 8,
        lambda x, y, w, b: torch.einsum("ij,kj,kl->il", x, y, y) / 8,
        lambda x, y, w, b: torch.softmax(x, 1) + torch.log_softmax(y, 0),
        lambda x, y, w, b: nn.functional.layer_norm(x, (5,), b, b),
        lambda x, y, w, b: nn.functional.gelu(x) - nn.functional.silu(y),
        lambda x, y, w, b: x - y.mean(1, keepdim=True),
        lambda x, y, w, b: x / (1 + y.abs().sum(0, keepdim=True)),
        lambda x, y, w, b: x * y.amax(0) / (1 + y.var(1, keepdim=True)),
        lambda x, y, w, b: x.cumsum(0) / 6 + y.norm(dim=1, keepdim=True) / 5,
        lambda x, y, w, b: torch.cat([x[1:], y[:1]]),
        lambda x, y, w, b: torch.stack([x, y], 1).flatten(0, 1)[::2],
        lambda x, y, w, b: x.view(3, 2, 5).transpose(0, 1).reshape(6, 5) + y,
        lambda x, y, w, b: x.reshape(5, 6).t().contiguous(),
        lambda x, y, w, b: torch.cat(y.split([2, 4])[::-1]) + x.flip(1),
        lambda x, y, w, b: x.gather(1, y.argsort(1)),
        lambda x, y, w, b: x[[5, 0, 3, 1, 2, 4]] - y.roll(1, 0),
        lambda x, y, w, b: x.index_select(1, torch.tensor([4, 3, 2, 1, 0])) + b,
        lambda x, y, w, b: torch.nn.functional.pad(x[:, 1:], (1, 0)) + y,
        lambda x, y, w, b: x.masked_fill(y > 1, 0.25).tril() + y.triu(1),
        lambda x, y, w, b: (x.unsqueeze(2) * y.unsqueeze(1)).sum(2),
        lambda x, y, w, b: nn.functional.scaled_dot_product_attention(
            x.view(1, 1, 6, 5), y.view(1, 1, 6, 5), y.view(1, 1, 6, 5),
            is_causal=True).view(6, 5),
        lambda x, y, w, b: x.expand(2, 6, 5).mean(0) + y.sum() / 30,
        lambda x, y, w, b: x.topk(5, 1).values + y.sort(0).values,
    ]

    def forward(self, *inputs):
        pool = list(inputs)
        for family, i, j, k in self.steps:
            made = self.families[family](
                pool[i], pool[j], self.weights[k], self.biases[k])
            pool[i] = torch.tanh(made)
        return tuple(pool)


class Drawing(nn.Module):
    """Draws random numbers of fixed sizes, and of the sizes of its input."""

    def forward(self, x):
        y = x + torch.rand(3, 4) + torch.randn(x.shape[0], 1)
        y = y + torch.randperm(4) + torch.bernoulli(torch.full((4,), 0.5))
        return y, nn.functional.dropout(y, 0.5, training=True)


class Shared(nn.Module):
    """One value that several operators need in another layout."""

    def forward(self, x):
        x = torch.tanh(x)
        return x.sort(1).values + x.mode(1, True).values + x.sort(1, True).values


class Packed(nn.Module):
    """Fused products of two or three projections, as in many models."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.o = nn.Linear(width, width)
        self.gate_up = nn.Linear(width, 2 * 20)
        self.down = nn.Linear(20, width)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for y in self.qkv(x).split(x.shape[-1], -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(x).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


@dataclasses.dataclass
class Fields:
    loss: torch.Tensor
    missing: object
    rest: object


torch.export.register_dataclass(Fields, serialized_type_name="Fields")


class Results(nn.Module):
    def forward(self, x):
        deep = {"first": [x * 2, (x + 1, 3, None)], 7: x.sum(0)}
        return Fields(x.sum(), None, deep)


class LowPrecision(nn.Module):
    """Nested autocast scopes, including one of an unused device."""

    def __init__(self, width=8):
        super().__init__()
        self.up = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.up(x)
            with torch.autocast("cpu", enabled=False):
                h = self.norm(h.float())
            with torch.no_grad():
                size = self.up(x).abs().max()
            y = self.down(h) / size
        with torch.autocast("cuda"):
            return y, self.up(y.float())


class Mixing(nn.Module):
    """One value that an operator needs as columns, and a later one replicated."""

    def forward(self, x):
        x = torch.tanh(x)
        return x.sort(0).values + x.median()


class Scaled(nn.Module):
    """A pair of products with a value in between that is unknown without data."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(5, 8)
        self.down = nn.Linear(8, 5)

    def forward(self, x):
        far = torch.cdist(x, x + 3).mean()
        return self.down(torch.relu(self.up(x)) * far)


class Writing(nn.Module):
    """Writes memory through views."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 5)

    def forward(self, x, y):
        x = torch.tanh(self.fc(x))
        column = x.clone()
        column[:, 2].mul_(2)
        rows = x.clone()
        rows[1:3] = y[1:3]
        deep = x + y
        deep.t()[1] += 0.5
        several = x.clone()
        columns, row = several[:, 1:3], several[0]
        columns.mul_(2)
        row.add_(1)
        silent = x.clone()
        with torch.no_grad():
            silent[0].zero_()
        changed = x * 2
        before, view = changed.sort(1).values, changed[1]
        changed.sub_(y)
        after = changed.sort(1).values + before + view
        put = x.clone()
        put[[0, 1], [2, 3]] = 0.25
        put.index_put_((torch.tensor([0, 1, 0]),), y[:3], accumulate=True)
        gram = x.t() @ y
        gram.diagonal().fill_(1.0)
        return column, rows, deep, several, silent, after, put, gram


class Columns(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[:, 2].mul_(2)
        y[:, 0] = y[:, 1]
        return torch.relu_(y)


class UserInput(nn.Module):
    def forward(self, x):
        x[0] += 1
        return x * 2


class Rare(nn.Module):
    """Operators without a rule and without a meta kernel."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 5)
        self.conv = nn.Conv1d(5, 5, 3, padding=1)
        self.gru = nn.GRU(5, 5)
        self.register_buffer("edges", torch.tensor([-0.5, 0.5]))

    def forward(self, x):
        x = torch.tanh(self.fc(x))
        # PyTorch 2.11 cannot export quantile.
        is_old = torch.__version__.startswith("2.11.")
        middle = x.median(1).values if is_old else x.quantile(0.5, 1)
        return (self.conv(x.t()[None]), self.gru(x)[0], torch.cdist(x, x + 3),
                torch.fft.fft(x, dim=1).abs(), middle,
                torch.bucketize(x, self.edges))


class Einsums(nn.Module):
    """Composite operators that need the same value replicated."""

    def forward(self, x):
        x = torch.tanh(x)
        return (torch.einsum("ij,kj->ik", x, x) +
                torch.einsum("ij,kj->ik", x + 1, x))


class Branches(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, [x])


class Looping(nn.Module):
    def forward(self, x):
        more, body = lambda i, t: i < 3, lambda i, t: (i + 1, t * 2)
        return while_loop(more, body, (torch.tensor(0), x))[1]


class Mapped(nn.Module):
    def forward(self, x):
        return map_rows(lambda row: row.sin(), x)


class Scanned(nn.Module):
    def forward(self, x):
        return scan(lambda sum, t: (sum + t, sum * t), torch.zeros(()), x)[1]


class Pair(nn.Module):
    """Two products, optionally with the same weight."""

    def __init__(self, width, inner, tied=False):
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        if tied:
            self.down.weight = self.up.weight

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class TiedPairs(nn.Module):
    """A pair with one weight, a pair with two, and a pair with weights tied to
    these in reverse order."""

    def __init__(self):
        super().__init__()
        self.same = Pair(8, 8, tied=True)
        self.good = Pair(8, 8)
        self.crossed = Pair(8, 8)
        self.crossed.up.weight = self.good.down.weight
        self.crossed.down.weight = self.good.up.weight
        self.alike = Pair(8, 8)
        self.alike.up.weight = self.good.up.weight
        self.alike.down.weight = self.good.down.weight

    def forward(self, x):
        for pair in (self.same, self.good, self.crossed, self.alike):
            x = x + pair(x)
        return x


class Repeated(nn.Module):
    """Layers that are called several times under one name."""

    def __init__(self):
        super().__init__()
        self.layer = Pair(8, 12)
        self.loop = nn.Linear(8, 8)
        self.partly = nn.Linear(8, 8)
        self.other = nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(3):
            x = x + self.layer(x)
        for _ in range(3):
            x = torch.tanh(self.loop(x))
        # One call of `partly` is in a pair, and the other is not.
        return self.other(torch.relu(self.partly(x))) + self.partly(x).sort(-1).values


class Behind(nn.Module):
    """Pairs behind operators without a rule, and a pair around such a value."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.a, self.b, self.c = Pair(8, 12), Pair(8, 12), Pair(8, 12)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        x = self.a(self.conv(x.t()[None])[0].t())
        x = self.b(torch.fft.fft(x, dim=1).abs())
        x = self.c(x + torch.trace(x))
        far = torch.cdist(x, x + 3).mean()
        return self.down(torch.relu(self.up(x)) * far)


class Wide(nn.Module):
    """8 MiB per weight: rows of 128 bytes, and rows of 256 KiB."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 65536)
        self.down = nn.Linear(65536, 32)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


n, t = Dim("n", min=2, max=64), Dim("t", min=2, max=16)
write("mixed", Mixed(), (torch.randn(3, 4),), {"more": {"k": torch.ones(4)}},
      dynamic={"x": {0: n}, "more": {"k": None}})
ids = lambda b, length: torch.randint(0, 32, (b, length))
write("transformer", Transformer().double(), (ids(2, 8),),
      dynamic={"ids": {0: n, 1: t}}, other=[(ids(3, 5),), (ids(1, 16),)])
write("normed", Normed().double(), (torch.randn(2, 3, 4, 4).double(),))
write("normed_functional", Normed().double(),
      (torch.randn(2, 3, 4, 4).double(),), decompose=True)
write("views", Views(), (torch.randn(5, 6),))

script_model = Transformer().double()
script_ids = ids(2, 8)
for kind, script in (("scripted", torch.jit.script(script_model)),
                     ("traced", torch.jit.trace(script_model, (script_ids,)))):
    script.save(folder / f"{kind}.ts")
script_model.zero_grad()
logits = script_model(script_ids)
logits.sum().backward()
torch.save([{
    "inputs": [script_ids], "outputs": [logits.detach()], "buffers": {},
    "gradients": {n: p.grad for n, p in script_model.named_parameters()},
}], folder / "script.pt")

for seed in range(4):
    write(f"random_{seed}", Random(seed),
          tuple(torch.randn(6, 5, dtype=torch.double) for _ in range(4)))

write("causal", nn.Sequential(Causal(12, 3), Causal(12, 3)).double(),
      (torch.randn(2, 11, 12, dtype=torch.double),))
write("mixing", Mixing().double(), (torch.randn(6, 8, dtype=torch.double),))
write("scaled", Scaled().double(), (torch.randn(6, 5, dtype=torch.double),))
write("shared", Shared().double(), (torch.randn(6, 8, dtype=torch.double),))
save(export(Drawing(), (torch.randn(3, 4),)), folder / "drawing.pt2")
# Gradients rounded to bfloat16 depend on the order of their terms.
write("autocast", LowPrecision(), (torch.randn(5, 8),), run_exported=True)
save(export(LowPrecision(), (torch.randn(5, 8),), strict=True),
     folder / "autocast_strict.pt2")

dynamic = {0: n, 1: t}
encoder = nn.Sequential(
    *(nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
      for _ in range(2)))
write("encoder", encoder.double(), (torch.randn(2, 7, 12).double(),),
      dynamic=(dynamic,), other=[(torch.randn(1, 5, 12).double(),)])
write("packed", Packed(12, 3).double(), (torch.randn(2, 7, 12).double(),),
      dynamic={"x": dynamic})
write("results", Results(), (torch.randn(3, 2),))

rows = lambda *sizes: torch.randn(*sizes, dtype=torch.double)
k = Dim("k", min=3, max=16)
write("writing", Writing().double(), (rows(6, 5), rows(6, 5)),
      dynamic={"x": {0: k}, "y": {0: k}}, other=[(rows(4, 5), rows(4, 5))])
write("einsums", Einsums(), (rows(6, 8),))
write("columns", Columns(), (rows(6, 5),))
save(export(UserInput(), (rows(6, 5),)), folder / "user_input.pt2")
write("rare", Rare().double(), (rows(6, 5),))
m = Dim("m", min=2, max=16)
decoder = nn.TransformerDecoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
write("decoder", decoder.double(), (rows(2, 7, 12), rows(2, 5, 12)),
      dynamic=({0: n, 1: t}, {0: n, 1: m}),
      other=[(rows(3, 4, 12), rows(3, 6, 12))])

write("tied_pairs", TiedPairs().double(), (rows(6, 8),))
write("repeated", Repeated().double(), (rows(6, 8),))
write("behind", Behind().double(), (rows(6, 8),))
write("decomposed", nn.Sequential(
          nn.Embedding(16, 12), Causal(12, 3), nn.Linear(12, 12),
          nn.LayerNorm(12), Pair(12, 20), nn.Linear(12, 16, bias=False)).double(),
      (torch.randint(0, 16, (2, 5)),), decompose=True)
save(export(Wide(), (torch.randn(2, 32),)), folder / "wide.pt2")

mlp = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8)).double()
torch.jit.script(mlp).save(folder / "scripted_mlp.ts")
torch.jit.script(mlp).save(folder / "torchscript.pt2")  # not an exported program
torch.jit.trace(mlp, (torch.randn(4, 8).double(),)).save(folder / "traced_mlp.ts")
torch.jit.script(encoder[0].train()).save(folder / "scripted_encoder.ts")

# Programs that are refused.
for refused in (Branches, Looping, Mapped, Scanned):
    save(export(refused(), (torch.randn(3),)),
         folder / f"{refused.__name__.lower()}.pt2")
whole = (folder / "mixed.pt2").read_bytes()


def changed(name, change):
    with zipfile.ZipFile(folder / "mixed.pt2") as old, \
            zipfile.ZipFile(folder / f"{name}.pt2", "w") as new:
        for item in old.infolist():
            text = old.read(item)
            if item.filename.endswith(".json"):
                text = change(item.filename, text)
            if text is not None:
                new.writestr(item.filename.replace("mixed/", f"{name}/"), text)


changed("newer", lambda n, s: s.replace(b'"major": 8', b'"major": 9'))
changed("unknown", lambda n, s: s.replace(b"aten.relu.default", b"aten.rolu.default"))
changed("argument", lambda n, s: s.replace(b'"name": "split_sizes"', b'"name": "split_syzes"'))
changed("cut_json", lambda n, s: s[:len(s) // 2])
changed("cut_graph", lambda n, s: s[:len(s) // 2] if "models/" in n else s)
changed("no_graph", lambda n, s: None if "models/" in n else s)
(folder / "truncated.pt2").write_bytes(whole[:len(whole) // 2])
(folder / "noise.pt2").write_bytes(b"PK\x03\x04" + bytes(range(256)) * 20)
(folder / "done").write_text("done")
