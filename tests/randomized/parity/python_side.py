# SPDX-License-Identifier: BSD-3-Clause
"""Runs parity cases with torch.distributed.tensor, over Gloo, and with plain
tensors.

run(cases) -> {case name: one result for each rank}; README.md describes the
fields of a case and a result.
"""

import contextlib
import datetime
import json
import logging
import math
import os
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)
from torch.distributed.tensor._utils import ExplicitRedistributionContext
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import (
    implicit_replication,
    local_map,
    register_sharding,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

FACTORIES = {"ones": ones, "zeros": zeros, "empty": empty, "rand": rand,
             "randn": randn}

TIMEOUT = datetime.timedelta(seconds=60)

# Python's name of a collective -> ours.
COLLECTIVES = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "all_reduce": "all_reduce",
    "allreduce_": "all_reduce",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "scatter_": "scatter",
}

PLACEMENT_NAMES = {"_MaskPartial": "P(sum)", "_NormPartial": "P(norm)"}


# --- the notation of layouts

def placement_of(text):
    if text is None:
        return None
    if text == "R":
        return Replicate()
    kind, inside = text[:-1].split("(")
    if kind == "P":
        return Partial(inside)
    if kind == "S":
        return Shard(int(inside))
    dim, factor = inside.split(", sf=")
    return _StridedShard(int(dim), split_factor=int(factor))


def placements_of(texts):
    return None if texts is None else [placement_of(text) for text in texts]


def text_of(placement):
    name = type(placement).__name__
    if name in PLACEMENT_NAMES:
        return PLACEMENT_NAMES[name]
    if isinstance(placement, _StridedShard):
        return f"SS({placement.dim}, sf={placement.split_factor})"
    if isinstance(placement, Shard):
        return f"S({placement.dim})"
    if isinstance(placement, Partial):
        return f"P({placement.reduce_op})"
    return "R"


# --- tensors and modules that are equal in Python and C++

def pattern(sizes, seed=1, dtype="float32", below=0, positive=False):
    """Returns numbers that are exact in every dtype. With `below`, returns
    indices less than that."""
    count = 1
    for size in sizes:
        count *= size
    numbers = torch.arange(count, dtype=torch.int64) * 37 + seed * 101
    kind = getattr(torch, dtype)
    if below:
        values = numbers % below
    elif dtype == "bool":
        values = numbers % 2 == 0
    elif kind.is_floating_point or kind.is_complex:
        low = -1 if positive else 26
        values = (numbers % 53 - low).to(torch.float64) / 16
    else:
        values = numbers % 7 - 3
    return values.to(kind).reshape(sizes)


class Mlp(nn.Module):
    def __init__(self, width, hidden, bias):
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=bias)
        self.w2 = nn.Linear(hidden, width, bias=bias)

    def forward(self, x):
        return self.w2(nn.functional.gelu(self.w1(x)))


class Stack(nn.Module):
    def __init__(self, width, hidden, bias):
        super().__init__()
        self.layers = nn.ModuleList(Mlp(width, hidden, bias) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Sum(nn.Module):
    def forward(self, x, y):
        return x * 2 + y


class Pair(nn.Module):
    def forward(self, x):
        return x * 2, x + 1


class Affine(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.register_buffer("shift", pattern([width], 9))

    def forward(self, x):
        return x * self.weight + self.shift


def module_of(step):
    kind = step["kind"]
    sizes = step.get("sizes", [])
    bias = step.get("bias", True)
    made = {
        "linear": lambda: nn.Linear(*sizes, bias=bias),
        "embedding": lambda: nn.Embedding(*sizes),
        "layer_norm": lambda: nn.LayerNorm(*sizes),
        "dropout": lambda: nn.Dropout(0.0),
        "relu": nn.ReLU,
        "mlp": lambda: Mlp(*sizes, bias),
        "stack": lambda: Stack(*sizes, bias),
        "sum": Sum,
        "pair": Pair,
        "affine": lambda: Affine(*sizes),
    }[kind]()
    with torch.no_grad():
        for index, parameter in enumerate(made.parameters()):
            parameter.copy_(pattern(parameter.shape, index + 1))
    return made


def layouts_of(given):
    if isinstance(given, list):
        return tuple(map(placement_of, given))
    if isinstance(given, dict):
        return {name: placement_of(text) for name, text in given.items()}
    return placement_of(given)


def style_of(given):
    options = dict(given)
    kind = options.pop("style")
    for name, value in options.items():
        if name.endswith("layouts"):
            options[name] = layouts_of(value)
    return {
        "colwise": ColwiseParallel,
        "rowwise": RowwiseParallel,
        "sequence": SequenceParallel,
        "prepare_input": PrepareModuleInput,
        "prepare_output": PrepareModuleOutput,
        "prepare_input_output": PrepareModuleInputOutput,
    }[kind](**options)


def twice_and_one_more(x):
    return x * 2, x + 1


LOCAL_FUNCTIONS = {
    "mm": torch.mm,
    "scale": lambda x, by: x * by,
    "two": twice_and_one_more,
}


def define_custom_operator():
    """Defines parity::scale_rows, like its C++ counterpart."""
    library = torch.library.Library("parity", "DEF")
    library.define("scale_rows(Tensor x, Tensor factors) -> Tensor")

    def scale_rows(x, factors):
        return x * factors.unsqueeze(1)

    library.impl("scale_rows", scale_rows, "CompositeExplicitAutograd")

    @register_sharding(torch.ops.parity.scale_rows.default)
    def layouts(x, factors):
        return [
            ([Replicate()], [Replicate(), Replicate()]),
            ([Shard(0)], [Shard(0), Shard(0)]),
            ([Shard(1)], [Shard(1), Replicate()]),
        ]

    return library


def is_json(name):
    with open(name) as file:
        return bool(json.load(file))


# --- results

def values_of(tensor):
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return [value if math.isfinite(value) else str(value)
            for value in map(float, tensor.reshape(-1).tolist())]


def meta_record(tensor):
    return {
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "requires_grad": tensor.requires_grad,
    }


def plain_record(tensor):
    return {**meta_record(tensor), "values": values_of(tensor)}


def record_of(tensor):
    if tensor is None:
        return None
    if not isinstance(tensor, DTensor):
        return plain_record(tensor)
    local = tensor.detach().to_local()
    return {
        **meta_record(tensor),
        "placements": [text_of(p) for p in tensor.placements],
        "mesh": mesh_record(tensor.device_mesh),
        "local_shape": list(local.shape),
        "local": values_of(local),
        "whole": values_of(tensor.detach().full_tensor()),
    }


def mesh_record(mesh):
    return {
        "shape": list(mesh.shape),
        "ranks": mesh.mesh.reshape(-1).tolist(),
        "names": list(mesh.mesh_dim_names or []),
        "coordinate": mesh.get_coordinate() and list(mesh.get_coordinate()),
    }


def names_in(step):
    names = step.get("names")
    return tuple(names) if names else None


def options_in(step, *names):
    """Returns the options that are given."""
    return {name: step[name] for name in names if name in step}


class Stop(Exception):
    """Raised if a step failed; the case ends there."""


class Machine:
    """Execution of one case on one rank."""

    def __init__(self, case):
        self.named = {}
        self.result = {"records": [], "counts": [], "error": None}
        if "mesh" in case:
            self.named["mesh"] = init_device_mesh(
                "cpu", tuple(case["mesh"]), mesh_dim_names=names_in(case))

    def get(self, name):
        name = name.removeprefix("$")
        if name.endswith(".grad"):
            return self.get(name.removesuffix(".grad")).grad
        return self.named[name]

    def value(self, given):
        if isinstance(given, list):
            return [self.value(item) for item in given]
        if not isinstance(given, str):
            return given
        if given.startswith("$"):
            return self.get(given)
        if given.startswith("!"):
            return getattr(torch, given[1:])
        if given.startswith("@"):
            return float(given[1:])
        return given

    def bind(self, names, values):
        if names is None:
            return
        if isinstance(names, str):
            self.named[names] = values
            return
        self.named.update(zip(names, values))

    def note(self, label, record):
        self.result["records"].append([label, record])

    def run(self, steps, prefix=""):
        for index, step in enumerate(steps):
            label = f"{prefix}{index} {step['do']}"
            if step["do"] == "within":
                with self.scope(step):
                    self.run(step["steps"], f"{prefix}{index}.")
                continue
            # Communication of `show` is not counted.
            comm = (contextlib.nullcontext() if step["do"].startswith("show")
                    else CommDebugMode())
            try:
                with comm, warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    getattr(self, "do_" + step["do"])(step)
            except Exception as error:
                self.result["error"] = {
                    "class": type(error).__name__, "at": label,
                    "text": str(error)[:400]}
                raise Stop from error
            if step.get("watch_warnings"):
                self.note(label, {"warned": bool(caught)})
            if isinstance(comm, CommDebugMode):
                self.count(label, comm.get_comm_counts())

    def count(self, label, counts):
        ours = {}
        for name, count in counts.items():
            name = str(name).split(".")[-1] if "." in str(name) else str(name)
            key = COLLECTIVES.get(name, name)
            ours[key] = ours.get(key, 0) + count
        ours = {key: count for key, count in ours.items() if count}
        if ours:
            self.result["counts"].append([label, ours])

    def scope(self, step):
        kind = step["scope"]
        if kind == "mesh":
            return self.get(step["mesh"])
        return {
            "loss_parallel": loss_parallel,
            "implicit_replication": implicit_replication,
            "explicit": lambda: ExplicitRedistributionContext(
                **step.get("options", {})),
        }[kind]()

    # --- tensors

    def do_tensor(self, step):
        options = options_in(step, "dtype", "below", "positive")
        seed = step.get("seed", 1) + 11 * dist.get_rank() * step.get(
            "differs", False)
        made = pattern(step["sizes"], seed, **options)
        if "permute" in step:
            made = made.permute(step["permute"])
        made.requires_grad_(step.get("requires_grad", False))
        self.bind(step["to"], made)

    def do_local_part(self, step):
        """Makes this rank's rows [begin, end) of a tensor."""
        begin, end = step["rows"][dist.get_rank()]
        part = self.get(step["of"]).detach()[begin:end].clone()
        part.requires_grad_(step.get("requires_grad", False))
        self.bind(step["to"], part)

    def mesh_of(self, step):
        given = step.get("mesh", "$mesh")
        return None if given is None else self.get(given)

    def do_distribute_tensor(self, step):
        options = options_in(step, "src_data_rank")
        self.bind(step["to"], distribute_tensor(
            self.get(step["of"]), self.mesh_of(step),
            placements_of(step.get("placements")), **options))

    def do_ask_placement(self, step):
        placement = placement_of(step["of"])
        self.note(step["of"], {
            "replicate": placement.is_replicate(),
            "partial": placement.is_partial(),
            "shard": placement.is_shard(),
            "first": placement.is_shard(0),
            "equal": [placement == placement_of(text)
                      for text in ("R", "S(0)", "P(sum)")]})

    def do_ask_chunks(self, step):
        self.note("chunks", [
            list(Shard.local_shard_size_and_offset(
                step["size"], step["parts"], index))
            for index in range(step["parts"])])

    def do_from_local(self, step):
        options = options_in(step, "run_check", "shape", "stride")
        for name in ("shape", "stride"):
            if name in options:
                options[name] = torch.Size(options[name])
        if "grad_placements" in step:
            options["grad_placements"] = placements_of(step["grad_placements"])
        self.bind(step["to"], DTensor.from_local(
            self.get(step["of"]), self.mesh_of(step),
            placements_of(step.get("placements")), **options))

    def do_redistribute(self, step):
        options = options_in(
            step, "async_op", "forward_dtype", "backward_dtype")
        options = {name: self.value(given) for name, given in options.items()}
        mesh = self.get(step["mesh"]) if "mesh" in step else None
        self.bind(step["to"], self.get(step["of"]).redistribute(
            mesh, placements_of(step["placements"]), **options))

    def do_to_local(self, step):
        self.bind(step["to"], self.get(step["of"]).to_local(
            grad_placements=placements_of(step.get("grad_placements"))))

    def do_full_tensor(self, step):
        self.bind(step["to"], self.get(step["of"]).full_tensor(
            grad_placements=placements_of(step.get("grad_placements"))))

    def do_factory(self, step):
        options = {"device_mesh": self.mesh_of(step),
                   "placements": placements_of(step.get("placements"))}
        if "dtype" in step:
            options["dtype"] = self.value(step["dtype"])
        if "requires_grad" in step:
            options["requires_grad"] = step["requires_grad"]
        if step["fn"] == "full":
            made = full(step["sizes"], step["value"], **options)
        else:
            made = FACTORIES[step["fn"]](*step["sizes"], **options)
        if step["fn"] in ("empty", "rand", "randn"):
            with torch.no_grad():
                made.zero_()  # its values are not compared
        self.bind(step["to"], made)

    # --- operators

    def do_op(self, step):
        space, _, name = step["name"].partition("::")
        name, _, overload = name.partition(".")
        op = getattr(getattr(getattr(torch.ops, space), name),
                     overload or "default")
        args = [self.value(given) for given in step["args"]]
        self.bind(step.get("to"), op(*args))

    def do_backward(self, step):
        self.get(step["of"]).backward()

    def do_grad(self, step):
        self.bind(step["to"], torch.autograd.grad(
            self.get(step["of"]), self.value(step["inputs"]),
            create_graph=step.get("create_graph", False)))

    def do_local_map(self, step):
        def layouts(given):
            if given is None:
                return None
            return tuple(placements_of(item) for item in given)

        out = step["out"]
        out = layouts(out) if out and isinstance(out[0], list) else (
            placements_of(out))
        function = local_map(
            LOCAL_FUNCTIONS[step["fn"]], out, layouts(step.get("in")),
            layouts(step.get("in_grad")),
            self.get(step["mesh"]) if "mesh" in step else None,
            redistribute_inputs=step.get("redistribute_inputs", False))
        self.bind(step["to"], function(*self.value(step["args"])))

    # --- meshes

    def do_init_device_mesh(self, step):
        self.bind(step["to"], init_device_mesh(
            "cpu", tuple(step["shape"]), mesh_dim_names=names_in(step)))

    def do_device_mesh(self, step):
        self.bind(step["to"], DeviceMesh(
            "cpu", torch.tensor(step["ranks"]),
            mesh_dim_names=names_in(step)))

    def do_from_group(self, step):
        mesh = self.get(step["of"])
        if "dim" in step:
            self.bind(step["to"], DeviceMesh.from_group(
                mesh.get_group(step["dim"]), "cpu",
                mesh_dim_names=names_in(step)))
            return
        self.bind(step["to"], DeviceMesh.from_group(
            mesh.get_all_groups(), "cpu", mesh=mesh.mesh,
            mesh_dim_names=names_in(step)))

    def do_slice(self, step):
        names = step["names"]
        self.bind(step["to"], self.get(step["of"])[
            names[0] if len(names) == 1 else tuple(names)])

    def do_flatten(self, step):
        self.bind(step["to"], self.get(step["of"])._flatten(step.get("name")))

    def do_unflatten(self, step):
        self.bind(step["to"], self.get(step["of"])._unflatten(
            step["dim"], tuple(step["sizes"]), tuple(step["names"])))

    def do_concatenate(self, step):
        self.bind(step["to"], DeviceMesh._concatenate(
            [self.get(name) for name in step["of"]]))

    def do_show_mesh(self, step):
        mesh = self.get(step["of"])
        record = mesh_record(mesh)
        record["device_type"] = mesh.device_type
        record["ndim"] = mesh.ndim
        record["size"] = mesh.size()
        record["rank"] = mesh.get_rank()
        dims = range(mesh.ndim if record["coordinate"] is not None else 0)
        record["sizes"] = [mesh.size(dim) for dim in dims]
        record["local_ranks"] = [mesh.get_local_rank(dim) for dim in dims]
        record["groups"] = [
            dist.get_process_group_ranks(mesh.get_group(dim)) for dim in dims]
        record["all_groups"] = len(mesh.get_all_groups()) if len(dims) else 0
        self.note(step["of"], record)

    def do_ask_mesh(self, step):
        method = getattr(self.get(step["of"]), step["method"])
        found = method() if "dim" not in step else method(step["dim"])
        if step["method"] == "get_group":
            found = dist.get_process_group_ranks(found)
        self.note(f"{step['of']}.{step['method']}", found)

    def do_show_local(self, step):
        local = self.get(step["of"]).to_local()
        self.note(step["of"], plain_record(local))

    def do_show_equal(self, step):
        first, second = (self.get(name) for name in step["of"])
        self.note(" == ".join(step["of"]), bool(first == second))

    # --- modules

    def do_module(self, step):
        self.bind(step["to"], module_of(step))

    def do_parallelize(self, step):
        plan = step.get("plan")
        if plan is not None:
            plan = (style_of(plan) if "style" in plan else
                    {name: style_of(style) for name, style in plan.items()})
        options = options_in(step, "src_data_rank")
        parallelize_module(
            self.get(step["of"]), self.mesh_of(step), plan, **options)

    def do_distribute_module(self, step):
        partition = step.get("partition")

        def partition_fn(name, module, mesh):
            for key, parameter in list(module.named_parameters(recurse=False)):
                full_name = f"{name}.{key}" if name else key
                if full_name in partition:
                    module.register_parameter(key, nn.Parameter(
                        distribute_tensor(parameter.detach(), mesh,
                                          placements_of(partition[full_name]))))

        def input_fn(module, inputs, mesh):
            return tuple(
                DTensor.from_local(x, mesh, placements_of(step["input"]))
                for x in inputs)

        def output_fn(module, output, mesh):
            return output.redistribute(
                placements=placements_of(step["output"])).to_local()

        distribute_module(self.get(step["of"]), self.mesh_of(step),
                          partition_fn if partition else None,
                          input_fn if "input" in step else None,
                          output_fn if "output" in step else None)

    def do_fully_shard(self, step):
        """Applies fully_shard to modules by name; "" is the root with all
        remaining parameters."""
        options = options_in(step, "reshard_after_forward")
        if dims := step.get("dims"):
            # Chooses the placement by a parameter's number of dimensions.
            options["shard_placement_fn"] = lambda parameter: Shard(
                dims[str(parameter.dim())])
        module = self.get(step["of"])
        for name in step["units"]:
            fully_shard(module.get_submodule(name), mesh=self.mesh_of(step),
                        **options)

    def do_call(self, step):
        named = {name: self.value(given)
                 for name, given in step.get("kwargs", {}).items()}
        self.bind(step["to"], self.get(step["of"])(
            *self.value(step["args"]), **named))

    def do_show_parameters(self, step):
        module = self.get(step["of"])
        for name, tensor in module.named_parameters():
            self.note(name, record_of(tensor))
            self.note(name + ".grad", record_of(tensor.grad))
        for name, tensor in module.named_buffers():
            self.note(name, record_of(tensor))

    def do_sharding_info(self, step):
        model = self.get(step["of"])
        with CommDebugMode() as comm:
            model(*self.value(step["args"]))

        def without_class(name):
            return name.partition(".")[2] or name

        self.note("shardings", {
            without_class(name): [text_of(p) for p in placements]
            for name, placements in comm.get_sharding_info().items()})
        self.note("parameters", {
            without_class(f"{module}.{name}"): list(tensor.shape)
            for module, parameters in comm.get_parameter_info().items()
            for name, tensor in parameters.items()})
        self.note("total", comm.get_total_counts())

    def do_comm_texts(self, step):
        model = self.get(step["of"])
        with CommDebugMode() as comm:
            model(*self.value(step["args"]))
        tables = [comm.generate_comm_debug_tracing_table(noise_level=level)
                  for level in range(4)]
        with tempfile.TemporaryDirectory() as folder:
            sizes = []
            for level in range(4):
                table, dump = f"{folder}/{level}.txt", f"{folder}/{level}.json"
                comm.log_comm_debug_tracing_table_to_file(table, level)
                comm.generate_json_dump(dump, level)
                sizes.append([os.path.getsize(table) > 0,
                              is_json(dump)])
        self.note("each level says more", [
            len(less) < len(more) for less, more in zip(tables, tables[1:])])
        self.note("name the collective", [
            "all_reduce" in table for table in tables])
        self.note("files", sizes)

    # --- results

    def do_show(self, step):
        for name in step["of"]:
            self.note(name, record_of(self.get(name)))


def run_case(case):
    machine = None
    try:
        machine = Machine(case)
        machine.run(case["steps"])
    except Stop:
        pass
    return machine.result


def run_rank(rank, size, cases, folder):
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)  # errors are results here
    dist.init_process_group(
        "gloo", rank=rank, world_size=size, timeout=TIMEOUT,
        init_method=f"file://{folder}/meeting_of_{size}")
    library = define_custom_operator()
    results = {}
    for case in cases:
        results[case["name"]] = run_case(case)
    with open(f"{folder}/{size}.{rank}.json", "w") as file:
        json.dump(results, file)
    del library
    # A case with an error on some ranks leaves collectives in flight.
    os._exit(0)


def run(cases):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    results = {case["name"]: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        for size in sorted({case["ranks"] for case in cases}):
            chosen = [case for case in cases if case["ranks"] == size]
            mp.start_processes(run_rank, (size, chosen, folder), nprocs=size,
                               start_method="fork")
            for rank in range(size):
                with open(f"{folder}/{size}.{rank}.json") as file:
                    for name, result in json.load(file).items():
                        results[name].append(result)
    return results
