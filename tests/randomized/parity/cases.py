# SPDX-License-Identifier: BSD-3-Clause
"""Parity cases: small programs that run in Python and in C++.

cases() -> a list; README.md describes the fields of a case. Names are unique,
and `rows` are the rows of docs/reference/api.md that a case covers.
"""

import itertools

CASES = []


def case(name, rows, steps, mesh=(2,), names=None, ranks=None):
    made = {"name": name, "rows": rows if isinstance(rows, list) else [rows],
            "steps": steps}
    if mesh is not None:
        made["mesh"] = list(mesh)
        if names:
            made["names"] = list(names)
    size = 1
    for part in mesh or ():
        size *= part
    made["ranks"] = ranks or size
    CASES.append(made)


def do(what, **step):
    if "in_" in step:
        step["in"] = step.pop("in_")
    return {"do": what, **step}


def tensor(to, sizes, **options):
    return do("tensor", to=to, sizes=sizes, **options)


def distribute(to, of, placements, **options):
    return do("distribute_tensor", to=to, of=of, placements=placements,
              **options)


def op(to, name, *args):
    return do("op", to=to, name="aten::" + name, args=list(args))


def show(*names):
    return do("show", of=list(names))


def within(scope, *steps, **options):
    return do("within", scope=scope, steps=list(steps), **options)


def words(placements):
    return " ".join(placements)


# Returns the layouts of a tensor on a mesh with that many dimensions.
def layouts(ndim, mesh_ndim, partial=("P(sum)",)):
    one = ["R", *partial, *(f"S({dim})" for dim in range(ndim))]
    return [list(some) for some in itertools.product(one, repeat=mesh_ndim)]


# --- tensors

def distribute_tensor_cases():
    rows = ["distribute_tensor", "distribute_tensor(tensor)",
            "distribute_tensor(device_mesh)", "distribute_tensor(placements)",
            "DTensor.placements", "DTensor.device_mesh", "Shard", "Shard(dim)",
            "Replicate"]
    for mesh, sizes in itertools.product(
            [(2,), (4,), (2, 2)], [[4, 6], [5, 3], [1, 7], [0, 3]]):
        for placements in layouts(2, len(mesh), partial=()):
            if len(mesh) == 2 and sizes in ([4, 6], [0, 3]):
                continue
            case(f"distribute {sizes} {words(placements)} on {mesh}", rows, [
                tensor("t", sizes, requires_grad=True),
                distribute("d", "t", placements),
                show("d")], mesh)
    for mesh in [(2,), (4,)]:
        case(f"distribute a number on {mesh}", rows, [
            tensor("t", []), distribute("d", "t", ["R"]), show("d")], mesh)
        for dtype in ("float64", "int64", "bool", "complex64"):
            case(f"distribute {dtype} on {mesh}", rows, [
                tensor("t", [5, 2], dtype=dtype),
                distribute("d", "t", ["S(0)"]), show("d")], mesh)
        case(f"distribute a transposed tensor on {mesh}", rows, [
            tensor("t", [5, 6], permute=[1, 0]),
            distribute("d", "t", ["S(1)"]), show("d")], mesh)
        case(f"distribute along the last dimension on {mesh}", rows, [
            tensor("t", [3, 6]), distribute("d", "t", ["S(-1)"]), show("d")],
            mesh)
        case(f"distribute without placements on {mesh}", rows, [
            tensor("t", [3, 6]), do("distribute_tensor", to="d", of="t"),
            show("d")], mesh)
        for placements in ("R", "S(0)"):
            for source in (1, None):
                case(f"distribute {placements} from {source} on {mesh}",
                     "distribute_tensor(src_data_rank)", [
                         tensor("t", [5, 3], differs=True),
                         distribute("d", "t", [placements],
                                    src_data_rank=source),
                         show("d")], mesh)
        case(f"distribute a DTensor in its layout on {mesh}", rows, [
            tensor("t", [4, 3]), distribute("d", "t", ["S(0)"]),
            distribute("again", "d", ["S(0)"]), show("again")], mesh)
        case(f"distribute a DTensor in another layout on {mesh}", rows, [
            tensor("t", [4, 3]), distribute("d", "t", ["S(0)"]),
            distribute("again", "d", ["R"])], mesh)
    case("distribute with too many placements", rows, [
        tensor("t", [4, 3]), distribute("d", "t", ["R", "R"])])
    case("distribute along a dimension that is not there", rows, [
        tensor("t", [4, 3]), distribute("d", "t", ["S(2)"])])
    case("distribute what is no leaf", rows, [
        tensor("t", [4, 3], requires_grad=True),
        op("twice", "mul.Tensor", "$t", 2.0),
        distribute("d", "twice", ["S(0)"])])
    case("distribute as a partial sum", rows, [
        tensor("t", [4, 3]), distribute("d", "t", ["P(sum)"]), show("d")])
    for split in (2, 3):
        case(f"distribute in {split} pieces", "_StridedShard(dim, split_factor)",
             [tensor("t", [12, 2]),
              distribute("d", "t", [f"SS(0, sf={split})"]), show("d")])


def from_local_cases():
    rows = ["DTensor", "DTensor.from_local", "DTensor.from_local(local_tensor)",
            "DTensor.from_local(device_mesh)",
            "DTensor.from_local(placements)"]
    options = {"requires_grad": True, "differs": True}
    for mesh in [(2,), (4,), (2, 2)]:
        for placements in layouts(2, len(mesh)):
            case(f"from_local {words(placements)} on {mesh}", rows, [
                tensor("t", [2, 3], requires_grad=True,
                       differs="R" not in placements),
                do("from_local", to="d", of="t", placements=placements),
                op("y", "mul.Tensor", "$d", 2.0),
                op("s", "sum", "$y"),
                show("d", "s"), do("backward", of="s"), show("t.grad")], mesh)
    for reduction in ("avg", "min", "max", "product"):
        case(f"from_local P({reduction})", ["Partial", "Partial(reduce_op)",
                                            "Partial.ALL_REDUCE_OPS",
                                            "Partial.LINEAR_REDUCE_OPS"], [
            tensor("t", [2, 3], differs=True),
            do("from_local", to="d", of="t", placements=[f"P({reduction})"]),
            show("d")])
    case("from_local of an unknown reduction", "Partial(reduce_op)", [
        tensor("t", [2, 3]),
        do("from_local", to="d", of="t", placements=["P(median)"]),
        show("d")])
    for check in (False, True):
        case(f"from_local with run_check={check}",
             "DTensor.from_local(run_check)", [
                 tensor("t", [2, 3], differs=True),
                 do("from_local", to="d", of="t", placements=["R"],
                    run_check=check), show("d")])
    case("from_local, uneven", ["DTensor.from_local(shape)",
                                "DTensor.from_local(stride)"], [
        tensor("whole", [5, 3]),
        do("local_part", to="t", of="whole", rows=[[0, 3], [3, 5]],
           requires_grad=True),
        do("from_local", to="d", of="t", placements=["S(0)"], shape=[5, 3],
           stride=[3, 1]),
        op("s", "sum", "$d"), show("d", "s"), do("backward", of="s"),
        show("t.grad")])
    case("from_local, one empty", "DTensor.from_local(shape)", [
        tensor("whole", [1, 3]),
        do("local_part", to="t", of="whole", rows=[[0, 1], [1, 1]]),
        do("from_local", to="d", of="t", placements=["S(0)"], shape=[1, 3],
           stride=[3, 1]), show("d")])
    case("from_local with a shape alone", "DTensor.from_local(shape)", [
        tensor("t", [2, 3]),
        do("from_local", to="d", of="t", placements=["S(0)"], shape=[4, 3])])
    for given, gradient in itertools.product(
            ["R", "S(0)", "P(sum)"], ["R", "S(0)", "P(sum)"]):
        case(f"from_local {given} with gradient {gradient}",
             "DTensor.from_local(grad_placements)", [
                 tensor("t", [2, 4], **options),
                 do("from_local", to="d", of="t", placements=[given],
                    grad_placements=[gradient]),
                 op("y", "mul.Tensor", "$d", 2.0),
                 do("redistribute", to="z", of="y", placements=["R"]),
                 op("s", "sum", "$z"), do("backward", of="s"),
                 show("t.grad")])
    case("from_local without placements", rows, [
        tensor("t", [2, 3]), do("from_local", to="d", of="t"), show("d")])
    case("from_local of a DTensor", rows, [
        tensor("t", [2, 3]), do("from_local", to="d", of="t"),
        do("from_local", to="e", of="d")])
    case("from_local along a dimension that is not there", rows, [
        tensor("t", [2, 3]),
        do("from_local", to="e", of="t", placements=["S(2)"])])


def redistribute_cases():
    rows = ["DTensor.redistribute", "DTensor.redistribute(placements)",
            "DTensor.full_tensor"]
    pairs = list(itertools.product(layouts(2, 1), layouts(2, 1)))
    for mesh, sizes in [((2,), [5, 3]), ((4,), [4, 8]), ((4,), [5, 2])]:
        for (given,), (wanted,) in pairs:
            case(f"redistribute {sizes} {given} to {wanted} on {mesh}", rows, [
                tensor("t", sizes, requires_grad=True),
                distribute("d", "t", ["R"]),
                *([do("redistribute", to="d", of="d", placements=[given])]
                  if given != "P(sum)" else partial_of("d", sizes)),
                do("redistribute", to="y", of="d", placements=[wanted]),
                show("d", "y"),
                do("full_tensor", to="f", of="y"), op("s", "sum", "$f"),
                do("grad", of="s", inputs=["$d"], to=["g"]), show("g")], mesh)
    some = [["R", "R"], ["S(0)", "R"], ["R", "S(1)"], ["S(0)", "S(1)"],
            ["S(0)", "S(0)"], ["S(1)", "S(0)"]]
    for given, wanted in itertools.product(some, some):
        case(f"redistribute {words(given)} to {words(wanted)}", rows, [
            tensor("t", [6, 5]), distribute("d", "t", given),
            do("redistribute", to="y", of="d", placements=wanted),
            show("y")], (2, 2))
    for kind in ("forward_dtype", "backward_dtype"):
        for wanted in ("R", "S(0)"):
            case(f"redistribute S(1) to {wanted} with {kind}",
                 f"DTensor.redistribute({kind})", [
                     tensor("t", [4, 6], requires_grad=True),
                     distribute("d", "t", ["S(1)"]),
                     do("redistribute", to="y", of="d", placements=[wanted],
                        **{kind: "!float64"}),
                     show("y"), op("s", "sum", "$y"),
                     do("grad", of="s", inputs=["$d"], to=["g"]), show("g")])
    for given, wanted in (("S(0)", "R"), ("R", "S(1)"), ("S(0)", "S(1)")):
        case(f"redistribute {given} to {wanted} asynchronously",
             "DTensor.redistribute(async_op)", [
                 tensor("t", [4, 6]), distribute("d", "t", [given]),
                 do("redistribute", to="y", of="d", placements=[wanted],
                    async_op=True), op("z", "mul.Tensor", "$y", 2.0),
                 show("y", "z")])
    case("redistribute to a partial sum", rows, [
        tensor("t", [4, 6]), distribute("d", "t", ["S(0)"]),
        do("redistribute", to="y", of="d", placements=["P(sum)"])])
    case("redistribute to another mesh", "DTensor.redistribute(device_mesh)", [
        do("init_device_mesh", to="other", shape=[2, 1]),
        tensor("t", [4, 6]), distribute("d", "t", ["S(0)"]),
        do("redistribute", to="y", of="d", mesh="$other",
           placements=["S(0)", "R"])])
    case("redistribute to the same mesh", "DTensor.redistribute(device_mesh)", [
        tensor("t", [4, 6]), distribute("d", "t", ["S(0)"]),
        do("redistribute", to="y", of="d", mesh="$mesh", placements=["R"]),
        show("y")])
    case("redistribute along a dimension that is not there", rows, [
        tensor("t", [4, 6]), distribute("d", "t", ["S(0)"]),
        do("redistribute", to="y", of="d", placements=["S(2)"])])
    case("redistribute with too many placements", rows, [
        tensor("t", [4, 6]), distribute("d", "t", ["S(0)"]),
        do("redistribute", to="y", of="d", placements=["S(0)", "R"])])


def partial_of(to, sizes):
    """Makes `to` a partial sum of different terms, with a gradient."""
    return [tensor("terms", sizes, requires_grad=True, differs=True),
            do("from_local", to=to, of="terms", placements=["P(sum)"])]


def to_local_cases():
    for given in ("R", "S(0)", "S(1)", "P(sum)"):
        for gradient in (None, ["R"], ["S(0)"], ["P(sum)"]):
            if gradient == ["S(0)"] and given != "S(0)":
                continue  # would have another shape
            wanted = {"grad_placements": gradient} if gradient else {}
            start = (partial_of("d", [4, 6]) if given == "P(sum)" else
                     [tensor("t", [4, 6], requires_grad=True),
                      distribute("d", "t", [given])])
            case(f"to_local of {given} with gradient {gradient}",
                 ["DTensor.to_local", "DTensor.to_local(grad_placements)"],
                 [*start, do("to_local", to="l", of="d", **wanted),
                  op("s", "sum", "$l"), show("l"),
                  do("grad", of="s", inputs=["$d"], to=["g"]), show("g")])
            case(f"full_tensor of {given} with gradient {gradient}",
                 ["DTensor.full_tensor", "DTensor.full_tensor(grad_placements)"],
                 [*start, do("full_tensor", to="l", of="d", **(
                     wanted if gradient != ["S(0)"] else {})),
                  op("s", "sum", "$l"), show("l"),
                  do("grad", of="s", inputs=["$d"], to=["g"]), show("g")])


def factory_cases():
    for fn in ("ones", "zeros", "empty", "full", "rand", "randn"):
        def made(**options):
            if fn == "full":
                options["value"] = 2.5
            return do("factory", fn=fn, to="d", **options)

        for mesh, placements in [((2,), ["R"]), ((2,), ["S(0)"]),
                                 ((4,), ["S(1)"]), ((2, 2), ["S(0)", "S(1)"]),
                                 ((2, 2), ["S(0)", "S(0)"])]:
            rows = [fn, f"{fn}(device_mesh)", f"{fn}(placements)"]
            if fn == "full":
                rows += ["full(size)", "full(fill_value)"]
            case(f"{fn} {words(placements)} on {mesh}", rows, [
                made(sizes=[5, 6], placements=placements), show("d")], mesh)
        case(f"{fn} without placements", [fn, f"{fn}(layout)"], [
            made(sizes=[5, 6]), show("d")])
        case(f"{fn} of float64", f"{fn}(dtype)", [
            made(sizes=[3], dtype="!float64"), show("d")])
        case(f"{fn} that requires grad", f"{fn}(requires_grad)", [
            made(sizes=[3], requires_grad=True), show("d")])
        case(f"{fn} with too many placements", f"{fn}(placements)", [
            made(sizes=[3], placements=["R", "R"])])
    for fn in ("ones", "full", "zeros"):
        options = {"value": 2.5} if fn == "full" else {}
        case(f"{fn} as a partial sum", f"{fn}(placements)", [
            do("factory", fn=fn, to="d", sizes=[3], placements=["P(sum)"],
               **options), show("d")])
    case("zeros of integers", "zeros(dtype)", [
        do("factory", fn="zeros", to="d", sizes=[3, 2], placements=["S(0)"],
           dtype="!int64"), show("d")])


def placement_cases():
    rows = ["Placement", "Placement.is_partial", "Placement.is_replicate",
            "Placement.is_shard"]
    for text in ("R", "S(0)", "S(1)", "P(sum)", "P(max)", "SS(0, sf=2)"):
        case(f"what {text} is", rows, [do("ask_placement", of=text)])
    for size, parts in ((5, 4), (4, 4), (2, 4), (0, 2), (7, 3)):
        case(f"{size} cut in {parts}", [
            "Shard.local_shard_size_and_offset",
            "Shard.local_shard_size_and_offset(curr_local_size)",
            "Shard.local_shard_size_and_offset(num_chunks)",
            "Shard.local_shard_size_and_offset(rank)"], [
                do("ask_chunks", size=size, parts=parts)])


# --- operators

# name, sizes of the tensors, arguments after them
UNARY = ["relu", "neg", "exp", "abs", "tanh", "sigmoid", "clone", "sin", "cos",
         "square", "sign"]
BINARY = ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor",
          "maximum", "eq.Tensor"]


def pointwise_cases():
    for index, name in enumerate(UNARY):
        given = ["R", "S(0)", "S(1)"][index % 3]
        case(f"{name} of {given}", "DTensor", [
            tensor("t", [5, 4], requires_grad=True),
            distribute("d", "t", [given]), op("y", name, "$d"), show("y"),
            op("s", "sum", "$y"), do("grad", of="s", inputs=["$d"], to=["g"]),
            show("g")])
    for name, (first, second) in itertools.product(
            BINARY, [("S(0)", "S(0)"), ("S(1)", "S(1)"), ("R", "R"),
                     ("S(0)", "R"), ("R", "S(1)"), ("S(0)", "S(1)")]):
        case(f"{name} of {first} and {second}", "DTensor", [
            tensor("t", [5, 4]), tensor("u", [5, 4], seed=2, positive=True),
            distribute("a", "t", [first]), distribute("b", "u", [second]),
            op("y", name, "$a", "$b"), show("y")])
    for name in ("add.Tensor", "mul.Tensor"):
        for first, second in [("P(sum)", "P(sum)"), ("P(sum)", "R"),
                              ("P(sum)", "S(0)")]:
            case(f"{name} of {first} and {second}", "DTensor", [
                *partial_of("a", [4, 4]),
                *(partial_of("b", [4, 4]) if second == "P(sum)" else
                  [tensor("u", [4, 4]), distribute("b", "u", [second])]),
                op("y", name, "$a", "$b"), show("y")])
    for name, number in [("mul.Tensor", 2.0), ("add.Tensor", 1.0),
                         ("pow.Tensor_Scalar", 2)]:
        for given in ("S(0)", "R"):
            case(f"{name} of {given} and a number", "DTensor", [
                tensor("t", [5, 4], requires_grad=True),
                distribute("d", "t", [given]), op("y", name, "$d", number),
                op("s", "sum", "$y"), show("y"),
                do("grad", of="s", inputs=["$d"], to=["g"]), show("g")])
    for sizes, (first, second) in itertools.product(
            [[4], [1, 4], [5, 1]], [("S(0)", "R"), ("S(1)", "R")]):
        case(f"broadcast {sizes} over {first}", "DTensor", [
            tensor("t", [5, 4], requires_grad=True),
            tensor("u", sizes, requires_grad=True),
            distribute("a", "t", [first]), distribute("b", "u", [second]),
            op("y", "mul.Tensor", "$a", "$b"), show("y"), op("s", "sum", "$y"),
            do("grad", of="s", inputs=["$a", "$b"], to=["ga", "gb"]),
            show("ga", "gb")])
    for given in ("S(0)", "R"):
        case(f"in place on {given}", "DTensor", [
            tensor("t", [5, 4]), tensor("u", [5, 4], seed=3),
            distribute("a", "t", [given]), distribute("b", "u", ["R"]),
            op(None, "add_.Tensor", "$a", "$b"), show("a")])
    case("in place would change the layout", "DTensor", [
        tensor("t", [5, 4]), tensor("u", [5, 4], seed=3),
        distribute("a", "t", ["R"]), distribute("b", "u", ["S(0)"]),
        op(None, "add_.Tensor", "$a", "$b"), show("a")])


def reduction_cases():
    for name in ("sum", "mean", "max", "min", "prod"):
        for given in ("R", "S(0)", "S(1)"):
            case(f"{name} of {given}", "DTensor", [
                tensor("t", [4, 6], requires_grad=True),
                distribute("d", "t", [given]), op("y", name, "$d"), show("y"),
                do("full_tensor", to="f", of="y"),
                do("grad", of="f", inputs=["$d"], to=["g"]), show("g")])
    for name in ("sum.dim_IntList", "mean.dim", "amax", "amin",
                 "linalg_vector_norm"):
        for given, dims, keep in itertools.product(
                ("S(0)", "S(1)"), ([0], [1], [0, 1]), (False, True)):
            if keep and dims == [0, 1]:
                continue
            arguments = [2.0] if name == "linalg_vector_norm" else []
            case(f"{name} of {given} over {dims}, keep {keep}", "DTensor", [
                tensor("t", [4, 6], positive=True),
                distribute("d", "t", [given]),
                op("y", name, "$d", *arguments, dims, keep), show("y")])
    for name in ("argmax", "var.correction", "cumsum", "any.dim", "all.dim"):
        for given in ("S(0)", "S(1)"):
            case(f"{name} of {given}", "DTensor", [
                tensor("t", [5, 6]), distribute("d", "t", [given]),
                op("y", name, "$d", *([[1]] if name == "var.correction"
                                      else [1])), show("y")])


def matmul_cases():
    for name, first, second in [("mm", [5, 4], [4, 6]),
                                ("bmm", [3, 5, 4], [3, 4, 6])]:
        dims = [f"S({dim})" for dim in range(len(first))]
        for a, b in itertools.product(["R", *dims], ["R", *dims]):
            case(f"{name} of {a} and {b}", "DTensor", [
                tensor("t", first), tensor("u", second, seed=2),
                distribute("a", "t", [a]), distribute("b", "u", [b]),
                op("y", name, "$a", "$b"), show("y")])
    for a, b, bias in [("R", "S(0)", "S(0)"), ("S(1)", "S(1)", "R"),
                       ("S(0)", "R", "R"), ("R", "R", "R")]:
        case(f"linear of {a}, {b} and {bias}", "DTensor", [
            tensor("t", [4, 6], requires_grad=True),
            tensor("u", [8, 6], seed=2, requires_grad=True),
            tensor("v", [8], seed=3, requires_grad=True),
            distribute("x", "t", [a]), distribute("w", "u", [b]),
            distribute("b", "v", [bias]),
            op("y", "linear", "$x", "$w", "$b"), show("y"),
            do("full_tensor", to="f", of="y"), op("s", "sum", "$f"),
            do("grad", of="s", inputs=["$x", "$w", "$b"],
               to=["gx", "gw", "gb"]), show("gx", "gw", "gb")])
    case("mm of a partial sum", "DTensor", [
        *partial_of("a", [4, 4]), tensor("u", [4, 6]),
        distribute("b", "u", ["R"]), op("y", "mm", "$a", "$b"), show("y")])


def shape_cases():
    views = [("view", [24]), ("view", [2, 2, 6]), ("view", [4, 3, 2]),
             ("view", [4, 6, 1]), ("permute", [1, 0]), ("unsqueeze", 0),
             ("unsqueeze", 2), ("t", None), ("expand", [3, 4, 6])]
    for (name, argument), given in itertools.product(
            views, ("R", "S(0)", "S(1)")):
        arguments = [] if argument is None else [argument]
        case(f"{name} {argument} of {given}", "DTensor", [
            tensor("t", [4, 6], requires_grad=True),
            distribute("d", "t", [given]), op("y", name, "$d", *arguments),
            show("y"), op("s", "sum", "$y"),
            do("grad", of="s", inputs=["$d"], to=["g"]), show("g")])
    for given in ("R", "S(0)", "S(1)"):
        for name, arguments, results in [
                ("split.Tensor", [2, 0], ["y", "z"]),
                ("chunk", [2, 1], ["y", "z"]),
                ("slice.Tensor", [0, 1, 3], "y"),
                ("slice.Tensor", [1, 0, 3], "y"),
                ("select.int", [0, 1], "y"),
                ("select.int", [1, 1], "y"),
                ("flip", [[0]], "y"), ("roll", [[1], [1]], "y"),
                ("constant_pad_nd", [[1, 1]], "y")]:
            case(f"{name} {arguments} of {given}", "DTensor", [
                tensor("t", [4, 6]), distribute("d", "t", [given]),
                op(results, name, "$d", *arguments),
                show(*(results if isinstance(results, list) else [results]))])
        for name in ("cat", "stack"):
            for dim, other in itertools.product(
                    (0, 1), sorted({"R", given})):
                case(f"{name} of {given} and {other} along {dim}", "DTensor", [
                    tensor("t", [4, 6]), tensor("u", [4, 6], seed=2),
                    distribute("a", "t", [given]),
                    distribute("b", "u", [other]),
                    op("y", name, ["$a", "$b"], dim), show("y")])


def network_cases():
    for name in ("softmax.int", "log_softmax.int"):
        for given, dim in itertools.product(("S(0)", "S(1)"), (0, 1)):
            case(f"{name} of {given} over {dim}", "DTensor", [
                tensor("t", [4, 6], requires_grad=True),
                distribute("d", "t", [given]), op("y", name, "$d", dim),
                show("y"), op("s", "sum", "$y"),
                do("grad", of="s", inputs=["$d"], to=["g"]), show("g")])
    for given in ("S(0)", "S(1)", "S(2)", "R"):
        case(f"layer_norm of {given}", "DTensor", [
            tensor("t", [2, 4, 6], requires_grad=True), tensor("u", [6]),
            distribute("d", "t", [given]), distribute("w", "u", ["R"]),
            op("y", "layer_norm", "$d", [6], "$w", "$w"), show("y"),
            op("z", "mul.Tensor", "$y", "$y"), op("s", "sum", "$z"),
            do("grad", of="s", inputs=["$d"], to=["g"]), show("g")])
        case(f"dropout without chance of {given}", "DTensor", [
            tensor("t", [2, 4, 6]), distribute("d", "t", [given]),
            op("y", "dropout", "$d", 0.0, True), show("y")])
    for weight, index in itertools.product(("R", "S(0)", "S(1)"),
                                           ("R", "S(0)")):
        case(f"embedding {weight} of {index}", "DTensor", [
            tensor("t", [8, 6]), tensor("i", [4, 3], dtype="int64", below=8),
            distribute("w", "t", [weight]), distribute("x", "i", [index]),
            op("y", "embedding", "$w", "$x"), show("y")])
    for given in ("S(0)", "S(1)", "R"):
        case(f"index_select of {given}", "DTensor", [
            tensor("t", [8, 6]), tensor("i", [3], dtype="int64", below=6),
            distribute("d", "t", [given]), distribute("x", "i", ["R"]),
            op("y", "index_select", "$d", 0, "$x"), show("y")])
        case(f"gather of {given}", "DTensor", [
            tensor("t", [4, 6]), tensor("i", [4, 6], dtype="int64", below=4),
            distribute("d", "t", [given]), distribute("x", "i", ["R"]),
            op("y", "gather", "$d", 0, "$x"), show("y")])
        case(f"where of {given}", "DTensor", [
            tensor("c", [4, 6], dtype="bool"), tensor("t", [4, 6]),
            distribute("x", "c", [given]), distribute("d", "t", [given]),
            op("z", "zeros_like", "$d"),
            op("y", "where.self", "$x", "$d", "$z"), show("z", "y")])
        case(f"topk of {given}", "DTensor", [
            tensor("t", [4, 6]), distribute("d", "t", [given]),
            op(["y", "i"], "topk", "$d", 2, 1), show("y", "i")])
        case(f"sort of {given}", "DTensor", [
            tensor("t", [4, 6]), distribute("d", "t", [given]),
            op(["y", "i"], "sort", "$d", 1), show("y", "i")])
        for name in ("new_zeros", "new_ones"):
            case(f"{name} beside {given}", "DTensor", [
                tensor("t", [4, 6]), distribute("d", "t", [given]),
                op("y", name, "$d", [2, 3]), show("y")])
        for name in ("ones_like", "zeros_like"):
            case(f"{name} of {given}", "DTensor", [
                tensor("t", [5, 6]), distribute("d", "t", [given]),
                op("y", name, "$d"), show("y")])
    # Attention is left out, because Python takes 20 s to search the layouts of
    # one call.


def mixed_cases():
    case("a plain tensor beside a DTensor", "DTensor", [
        tensor("t", [4, 6]), distribute("d", "t", ["S(0)"]),
        op("y", "add.Tensor", "$d", "$t")])
    case("a plain number beside a DTensor", "DTensor", [
        tensor("t", [4, 6]), tensor("n", []), distribute("d", "t", ["S(0)"]),
        op("y", "add.Tensor", "$d", "$n"), show("y")])
    case("operands on two meshes", "DTensor", [
        do("init_device_mesh", to="other", shape=[2, 1]),
        tensor("t", [4, 6]), distribute("a", "t", ["R"]),
        distribute("b", "t", ["R", "R"], mesh="$other"),
        op("y", "add.Tensor", "$a", "$b")])
    case("an operator without a rule", "DTensor", [
        tensor("t", [4, 6]), distribute("d", "t", ["S(0)"]),
        op("y", "_pdist_forward", "$d", 2), show("y")])
    case("sizes that do not fit", "DTensor", [
        tensor("t", [4, 6]), tensor("u", [5, 6]),
        distribute("a", "t", ["S(0)"]), distribute("b", "u", ["S(0)"]),
        op("y", "add.Tensor", "$a", "$b")])
    case("sizes of factors that do not fit", "DTensor", [
        tensor("t", [4, 6]), tensor("u", [4, 6]),
        distribute("a", "t", ["R"]), distribute("b", "u", ["S(0)"]),
        op("y", "mm", "$a", "$b")])
    case("a dimension that is not there", "DTensor", [
        tensor("t", [4, 6]), distribute("a", "t", ["S(0)"]),
        op("y", "sum.dim_IntList", "$a", [3])])
    case("a second derivative", "DTensor", [
        tensor("t", [4, 6], requires_grad=True),
        distribute("d", "t", ["S(0)"]),
        op("y", "pow.Tensor_Scalar", "$d", 3), op("s", "sum", "$y"),
        do("grad", of="s", inputs=["$d"], to=["g"], create_graph=True),
        op("r", "sum", "$g"), do("grad", of="r", inputs=["$d"], to=["h"]),
        show("g", "h")])
    case("a gradient that is kept", "DTensor", [
        tensor("t", [4, 6], requires_grad=True),
        distribute("d", "t", ["S(0)"]),
        op("y", "mul.Tensor", "$d", 3.0), op("s", "sum", "$y"),
        do("backward", of="s"), show("d.grad"), show("t.grad")])


# --- meshes

def mesh_cases():
    def looked_at(name, rows, steps, of, mesh=None, **options):
        case(name, rows, [*steps, *(do("show_mesh", of=one) for one in of)],
             mesh, **options)

    what = ["DeviceMesh.size", "DeviceMesh.size(mesh_dim)", "DeviceMesh.ndim",
            "DeviceMesh.shape", "DeviceMesh.get_rank", "DeviceMesh.mesh",
            "DeviceMesh.get_local_rank", "DeviceMesh.get_local_rank(mesh_dim)",
            "DeviceMesh.get_coordinate", "DeviceMesh.device_type",
            "DeviceMesh.mesh_dim_names", "DeviceMesh.get_group",
            "DeviceMesh.get_group(mesh_dim)", "DeviceMesh.get_all_groups"]
    init = ["init_device_mesh", "init_device_mesh(device_type)",
            "init_device_mesh(mesh_shape)", "init_device_mesh(mesh_dim_names)"]
    for shape in ([4], [2, 2], [4, 1], [1, 4], [2, 1, 2]):
        for names in (None, ["a", "b", "c"][:len(shape)]):
            looked_at(f"a mesh {shape} named {names}", init + what, [
                do("init_device_mesh", to="m", shape=shape, names=names)],
                ["m"], ranks=4)
    for ranks in ([0, 1, 2, 3], [3, 1, 0, 2], [[0, 1], [2, 3]],
                  [[3, 2], [1, 0]], [[0, 2], [1, 3]]):
        looked_at(f"a mesh of the ranks {ranks}",
                  ["DeviceMesh", "DeviceMesh(mesh)", "DeviceMesh(device_type)"],
                  [do("device_mesh", to="m", ranks=ranks)], ["m"], ranks=4)
    for ranks in ([0, 1], [2, 1, 3]):
        case(f"a mesh of some ranks {ranks}", ["DeviceMesh(mesh)",
                                               "DeviceMesh.get_coordinate"], [
            do("device_mesh", to="m", ranks=ranks),
            do("ask_mesh", of="m", method="get_coordinate"),
            do("ask_mesh", of="m", method="get_rank"),
            tensor("t", [4, 6]), distribute("d", "t", ["S(0)"], mesh="$m"),
            op("y", "mul.Tensor", "$d", 2.0), do("show_local", of="y")],
            None, ranks=4)
    cut = "mesh[\"tp\"], mesh[\"dp\", \"tp\"]"
    for names in (["a"], ["b"], ["c"], ["a", "b"], ["a", "c"], ["b", "c"],
                  ["a", "b", "c"]):
        looked_at(f"a slice {names}", cut, [
            do("slice", to="s", of="mesh", names=names)], ["s"], (2, 1, 2),
            names=["a", "b", "c"])
    for names in (["x"], ["b", "a"], ["a", "a"]):
        case(f"a slice {names} that is none", cut, [
            do("slice", to="s", of="mesh", names=names)], (2, 2),
            names=["a", "b"])
    for name in (None, "all"):
        looked_at(f"flattened as {name}", "DeviceMesh._flatten", [
            do("flatten", to="s", of="mesh", name=name)], ["s"], (2, 2),
            names=["a", "b"])
    looked_at("a flattened slice, found by its name", "DeviceMesh._flatten", [
        do("slice", to="s", of="mesh", names=["a", "b"]),
        do("flatten", to="f", of="s", name="ab"),
        do("slice", to="g", of="mesh", names=["ab"])], ["f", "g"], (2, 2, 1),
        names=["a", "b", "c"])
    for dim, sizes in ((0, [2, 2]), (0, [4, 1]), (0, [1, 4])):
        looked_at(f"dimension {dim} taken apart as {sizes}",
                  "DeviceMesh._unflatten", [
                      do("unflatten", to="s", of="mesh", dim=dim, sizes=sizes,
                         names=["x", "y"])], ["s"], (4,), names=["a"])
    case("taken apart into too much", "DeviceMesh._unflatten", [
        do("unflatten", to="s", of="mesh", dim=0, sizes=[3, 2],
           names=["x", "y"])], (4,), names=["a"])
    looked_at("slices side by side", "DeviceMesh._concatenate", [
        do("slice", to="a", of="mesh", names=["a"]),
        do("slice", to="c", of="mesh", names=["c"]),
        do("concatenate", to="s", of=["a", "c"])], ["s"], (2, 1, 2),
        names=["a", "b", "c"])
    from_group = ["DeviceMesh.from_group", "DeviceMesh.from_group(group)",
                  "DeviceMesh.from_group(device_type)",
                  "DeviceMesh.from_group(mesh_dim_names)"]
    for dim in (0, "b"):
        looked_at(f"a mesh of the group of {dim}", from_group, [
            do("from_group", to="g", of="mesh", dim=dim, names=["x"])], ["g"],
            (2, 2), names=["a", "b"])
    looked_at("a mesh of all groups", [*from_group,
                                       "DeviceMesh.from_group(mesh)"], [
        do("from_group", to="g", of="mesh", names=["x", "y"])], ["g"], (2, 2),
        names=["a", "b"])
    for method, dim in [("get_group", "a"), ("get_group", 1),
                        ("get_group", "x"), ("get_group", None),
                        ("get_local_rank", "b"), ("get_local_rank", 0),
                        ("get_local_rank", "x"), ("get_local_rank", None),
                        ("size", 0), ("size", 1), ("size", None),
                        ("get_coordinate", None), ("get_rank", None)]:
        asked = {} if dim is None else {"dim": dim}
        case(f"{method} {dim}", f"DeviceMesh.{method}", [
            do("ask_mesh", of="mesh", method=method, **asked)], (2, 2),
            names=["a", "b"])
    for names in (["a", "a"], ["a"]):
        case(f"a mesh of two dimensions named {names}",
             ["init_device_mesh(mesh_dim_names)",
              "DeviceMesh(mesh_dim_names)"], [
                 do("init_device_mesh", to="m", shape=[2, 2], names=names)],
             None, ranks=4)
    case("a mesh that is too large", "init_device_mesh(mesh_shape)", [
        do("init_device_mesh", to="m", shape=[4, 2])], None, ranks=4)
    case("equal meshes", "DeviceMesh", [
        do("init_device_mesh", to="m", shape=[2, 2], names=["a", "b"]),
        do("init_device_mesh", to="n", shape=[2, 2], names=["a", "c"]),
        do("show_equal", of=["mesh", "m"]),
        do("show_equal", of=["mesh", "n"])], (2, 2), names=["a", "b"])
    current = ["with mesh:", "distribute_tensor(device_mesh)",
               "DTensor.from_local(device_mesh)"]
    case("the mesh of a scope", current, [
        tensor("t", [4, 6]),
        within("mesh", do("distribute_tensor", to="d", of="t", mesh=None,
                          placements=["S(0)"]),
               do("from_local", to="e", of="t", mesh=None,
                  placements=["S(1)"]),
               do("factory", fn="ones", to="f", sizes=[4], mesh=None),
               mesh="mesh"), show("d", "e", "f")])
    case("no mesh", current, [
        tensor("t", [4, 6]),
        do("distribute_tensor", to="d", of="t", mesh=None,
           placements=["S(0)"])])
    case("a DTensor on a slice", cut, [
        do("slice", to="m", of="mesh", names=["b"]), tensor("t", [5, 3]),
        distribute("d", "t", ["S(0)"], mesh="$m"),
        do("redistribute", to="y", of="d", placements=["R"]), show("d", "y")],
        (2, 2), names=["a", "b"])


# --- modules

def trained(module, plan, sizes, shown=(), **options):
    """A training step of `module` on an input of `sizes`, and its results."""
    return [
        do("module", to="m", **module),
        tensor("x", sizes, seed=7, requires_grad=True,
               **options.pop("input", {})),
        do("parallelize", of="m", plan=plan, **options),
        do("call", to="y", of="m", args=["$x"]), op("s", "sum", "$y"),
        show("y"), do("backward", of="s"), show("x.grad", *shown),
        do("show_parameters", of="m")]


def style(kind, **options):
    return {"style": kind, **options}


def linear_style_cases():
    options = {
        "colwise": [("input_layouts", ["R", "S(0)", "S(-1)"]),
                    ("output_layouts", ["S(-1)", "R", "S(0)"]),
                    ("use_local_output", [True, False])],
        "rowwise": [("input_layouts", ["S(-1)", "R", "S(0)"]),
                    ("output_layouts", ["R", "S(0)", "S(-1)"]),
                    ("use_local_output", [True, False])],
    }
    names = {"colwise": "ColwiseParallel", "rowwise": "RowwiseParallel"}
    for kind, choices in options.items():
        rows = [names[kind]] + [f"{names[kind]}({option})"
                                for option, _ in choices]
        for mesh, bias in (((2,), True), ((4,), False)):
            case(f"{kind} as it is on {mesh}, bias {bias}",
                 [*rows, "parallelize_module", "parallelize_module(module)",
                  "parallelize_module(device_mesh)"],
                 trained({"kind": "linear", "sizes": [8, 8], "bias": bias},
                         style(kind), [4, 8 // mesh[0] if kind == "rowwise"
                                       else 8]), mesh)
        for option, values in choices:
            for value in values:
                width = 4 if (option == "input_layouts" and value == "S(-1)"
                              or option != "input_layouts"
                              and kind == "rowwise") else 8
                case(f"{kind} with {option} {value}", rows, trained(
                    {"kind": "linear", "sizes": [8, 8]},
                    style(kind, **{option: value}), [2, 4, width]))
        case(f"{kind} of an uneven Linear", rows, trained(
            {"kind": "linear", "sizes": [6, 5]}, style(kind),
            [4, 6 if kind == "colwise" else 3]))
        case(f"{kind} of an Embedding", rows, [
            do("module", to="m", kind="embedding", sizes=[8, 6]),
            tensor("i", [4, 3], dtype="int64", below=8),
            do("parallelize", of="m", plan=style(kind, input_layouts="R")),
            do("call", to="y", of="m", args=["$i"]), show("y"),
            op("s", "sum", "$y"), do("backward", of="s"),
            do("show_parameters", of="m")])
        case(f"{kind} of a LayerNorm", rows, [
            do("module", to="m", kind="layer_norm", sizes=[6]),
            do("parallelize", of="m", plan=style(kind))])
        for source in (0, 1, None):
            case(f"{kind} with the values of rank {source}",
                 ["parallelize_module(src_data_rank)",
                  "ParallelStyle.src_data_rank"], [
                     do("module", to="m", kind="linear", sizes=[4, 4]),
                     do("parallelize", of="m", plan=style(kind),
                        src_data_rank=source),
                     do("show_parameters", of="m")])
        case(f"{kind} twice", rows, [
            do("module", to="m", kind="linear", sizes=[4, 4]),
            do("parallelize", of="m", plan=style(kind)),
            do("parallelize", of="m", plan=style(kind))])
        case(f"{kind} of a DTensor", rows, [
            do("module", to="m", kind="linear", sizes=[8, 8]),
            do("parallelize", of="m", plan=style(kind)),
            tensor("t", [4, 8]), distribute("d", "t", ["S(0)"]),
            do("call", to="y", of="m", args=["$d"]), show("y")])


def plan_cases():
    plan = ["parallelize_module", "parallelize_module(parallelize_plan)"]
    pair = {"w1": style("colwise"), "w2": style("rowwise")}
    for mesh in ((2,), (4,)):
        for bias in (True, False):
            case(f"an MLP on {mesh}, bias {bias}", plan, trained(
                {"kind": "mlp", "sizes": [4, 8], "bias": bias}, pair, [3, 4]),
                mesh)
    case("an MLP along the sequence", plan, trained(
        {"kind": "mlp", "sizes": [4, 8]},
        {"w1": style("colwise", input_layouts="S(0)"),
         "w2": style("rowwise", output_layouts="S(0)")}, [3, 4]))
    for pattern in ("layers.*.w1", "layers.0.w1", "layers.?.w1",
                    "layers.[01].w1", "layers.[!0].w1", "layers.*.w[1]"):
        case(f"the pattern {pattern}", plan, [
            do("module", to="m", kind="stack", sizes=[4, 8]),
            do("parallelize", of="m", plan={
                pattern: style("colwise", output_layouts="R")}),
            tensor("x", [3, 4]), do("call", to="y", of="m", args=["$x"]),
            show("y"), do("show_parameters", of="m")])
    case("a whole stack", plan, trained(
        {"kind": "stack", "sizes": [4, 8]},
        {"layers.*.w1": style("colwise"), "layers.*.w2": style("rowwise")},
        [3, 4]))
    case("a pattern that matches nothing", plan, [
        do("module", to="m", kind="mlp", sizes=[4, 8]),
        do("parallelize", of="m", plan={"w3": style("colwise")},
           watch_warnings=True), do("show_parameters", of="m")])
    case("no plan", plan, [
        do("module", to="m", kind="mlp", sizes=[4, 8]),
        do("parallelize", of="m", watch_warnings=True),
        do("show_parameters", of="m")])
    case("a style for the module itself", plan, [
        do("module", to="m", kind="linear", sizes=[4, 8]),
        do("parallelize", of="m", plan={"": style("colwise")}),
        do("show_parameters", of="m")])
    case("the mesh of a scope, for modules", [
        "parallelize_module(device_mesh)", "with mesh:", "ParallelStyle"], [
        do("module", to="m", kind="mlp", sizes=[4, 8]),
        within("mesh", do("parallelize", of="m", plan=pair, mesh=None),
               mesh="mesh"), do("show_parameters", of="m")])
    case("a mesh of two dimensions", plan, [
        do("module", to="m", kind="mlp", sizes=[4, 8]),
        do("parallelize", of="m", plan=pair)], (2, 2))
    case("a slice of a mesh, for modules", plan, [
        do("slice", to="tp", of="mesh", names=["tp"]),
        *trained({"kind": "mlp", "sizes": [4, 8]}, pair, [3, 4],
                 mesh="$tp")], (2, 2), names=["dp", "tp"])
    case("what CommDebugMode writes of an MLP", [
        "CommDebugMode.generate_json_dump",
        "CommDebugMode.generate_json_dump(file_name)",
        "CommDebugMode.generate_json_dump(noise_level)",
        "CommDebugMode.generate_comm_debug_tracing_table",
        "CommDebugMode.generate_comm_debug_tracing_table(noise_level)",
        "CommDebugMode.log_comm_debug_tracing_table_to_file",
        "CommDebugMode.log_comm_debug_tracing_table_to_file(file_name)",
        "CommDebugMode.log_comm_debug_tracing_table_to_file(noise_level)"], [
        do("module", to="m", kind="mlp", sizes=[4, 8]),
        do("parallelize", of="m", plan=pair), tensor("x", [3, 4]),
        do("comm_texts", of="m", args=["$x"])])
    case("what CommDebugMode says of an MLP", [
        "CommDebugMode", "CommDebugMode.get_sharding_info",
        "CommDebugMode.get_parameter_info", "CommDebugMode.get_total_counts",
        "CommDebugMode.get_comm_counts"], [
        do("module", to="m", kind="mlp", sizes=[4, 8]),
        do("parallelize", of="m", plan=pair), tensor("x", [3, 4]),
        do("sharding_info", of="m", args=["$x"])])


def sequence_cases():
    rows = ["SequenceParallel", "SequenceParallel(sequence_dim)",
            "SequenceParallel(use_local_output)"]
    for mesh, dim, local in itertools.product(
            ((2,), (4,)), (0, 1), (True, False)):
        case(f"a LayerNorm along {dim} on {mesh}, local {local}", rows, trained(
            {"kind": "layer_norm", "sizes": [6]},
            style("sequence", sequence_dim=dim, use_local_output=local),
            [3, 2, 6], input={"differs": True}), mesh)
    case("a Dropout along the sequence", rows, trained(
        {"kind": "dropout"}, style("sequence"), [3, 2, 6],
        input={"differs": True}))
    case("a LayerNorm of a DTensor", rows, [
        do("module", to="m", kind="layer_norm", sizes=[6]),
        do("parallelize", of="m", plan=style("sequence")),
        tensor("t", [3, 4, 6]), distribute("d", "t", ["R"]),
        do("call", to="y", of="m", args=["$d"]), show("y")])


def prepare_cases():
    def rows(name, *options):
        return [name] + [f"{name}({option})" for option in options]

    def called(kind, plan, inputs, shown, kwargs=None):
        given = {"args": ["$" + name for name in inputs]}
        if kwargs:
            given = {"args": given["args"][:-len(kwargs)], "kwargs": kwargs}
        return [
            do("module", to="m", kind=kind),
            do("parallelize", of="m", plan=plan),
            *(tensor(name, [8, 3] if name == "z" else [4, 6], seed=seed + 1,
                     differs=True) for seed, name in enumerate(inputs)),
            do("call", to=shown if len(shown) > 1 else shown[0], of="m",
               **given), show(*shown)]

    inside = rows("PrepareModuleInput", "input_layouts",
                  "desired_input_layouts", "use_local_output")
    for given, wanted in itertools.product(("R", "S(0)", "S(1)"), repeat=2):
        case(f"an input {given} as {wanted}", inside, called(
            "relu", style("prepare_input", input_layouts=[given],
                          desired_input_layouts=[wanted]), ["x"], ["y"]))
    for local in (True, False):
        case(f"two inputs, local {local}", inside, called(
            "sum", style("prepare_input", input_layouts=["S(0)", "S(1)"],
                         desired_input_layouts=["R", "R"],
                         use_local_output=local), ["x", "z"], ["y"]))
    case("an input that passes through", inside, called(
        "sum", style("prepare_input", input_layouts=["S(0)", None],
                     desired_input_layouts=["S(1)", None],
                     use_local_output=True), ["x", "z"], ["y"]))
    case("as many layouts as wanted", inside, called(
        "relu", style("prepare_input", input_layouts=["S(0)"],
                      desired_input_layouts=["R", "R"]), ["x"], ["y"]))
    case("as many inputs as layouts", inside, called(
        "sum", style("prepare_input", input_layouts=["S(0)"],
                     desired_input_layouts=["R"]), ["x", "z"], ["y"]))
    outside = rows("PrepareModuleOutput", "output_layouts",
                   "desired_output_layouts", "use_local_output")
    for given, wanted in itertools.product(("R", "S(0)", "S(1)"), repeat=2):
        case(f"an output {given} as {wanted}", outside, called(
            "relu", style("prepare_output", output_layouts=[given],
                          desired_output_layouts=[wanted]), ["x"], ["y"]))
    for local in (True, False):
        case(f"two outputs, local {local}", outside, called(
            "pair", style("prepare_output", output_layouts=["S(0)", "R"],
                          desired_output_layouts=["R", "S(1)"],
                          use_local_output=local), ["x"], ["y", "z"]))
    for name, row in (("prepare_input", "PrepareModuleInput"),
                      ("prepare_input_output", "PrepareModuleInputOutput")):
        after = ({"output_layouts": ["R"], "desired_output_layouts": ["S(0)"]}
                 if name == "prepare_input_output" else {})
        case(f"an input by its name, {name}",
             rows(row, "input_kwarg_layouts", "desired_input_kwarg_layouts"),
             called("sum", style(
                 name, input_layouts=["S(0)"], desired_input_layouts=["R"],
                 input_kwarg_layouts={"y": "S(1)"},
                 desired_input_kwarg_layouts={"y": "R"}, **after),
                 ["x", "z"], ["y"], kwargs={"y": "$z"}))
    both = rows("PrepareModuleInputOutput", "input_layouts",
                "desired_input_layouts", "use_local_input", "output_layouts",
                "desired_output_layouts", "use_local_output")
    for local_in, local_out in itertools.product((True, False), repeat=2):
        case(f"both, local {local_in} and {local_out}", both, called(
            "relu", style("prepare_input_output", input_layouts=["S(0)"],
                          desired_input_layouts=["R"],
                          use_local_input=local_in, output_layouts=["R"],
                          desired_output_layouts=["S(1)"],
                          use_local_output=local_out), ["x"], ["y"]))


def distribute_module_cases():
    rows = ["distribute_module", "distribute_module(module)",
            "distribute_module(device_mesh)",
            "distribute_module(partition_fn)"]
    for mesh in ((2,), (2, 2)):
        case(f"a module replicated on {mesh}", rows, [
            do("module", to="m", kind="affine", sizes=[6]),
            do("distribute_module", of="m"),
            do("show_parameters", of="m")], mesh)
    case("a module partitioned", rows, [
        do("module", to="m", kind="mlp", sizes=[4, 8]),
        do("distribute_module", of="m", partition={
            "w1.weight": ["S(0)"], "w1.bias": ["S(0)"],
            "w2.weight": ["S(1)"]}),
        do("show_parameters", of="m"),
        tensor("t", [3, 4]), distribute("x", "t", ["R"]),
        do("call", to="y", of="m", args=["$x"]), show("y")])
    for given, wanted in (("S(0)", "R"), ("S(1)", "S(0)"), ("R", "S(1)")):
        case(f"a module between functions, {given} to {wanted}", [
            "distribute_module(input_fn)", "distribute_module(output_fn)"], [
                do("module", to="m", kind="relu"),
                do("distribute_module", of="m", input=[given],
                   output=[wanted]), tensor("x", [4, 6], differs=True),
                do("call", to="y", of="m", args=["$x"]), show("y")])
    case("a module distributed twice", rows, [
        do("module", to="m", kind="affine", sizes=[6]),
        do("distribute_module", of="m"), do("distribute_module", of="m")])
    case("a module on the mesh of a scope", rows, [
        do("module", to="m", kind="affine", sizes=[6]),
        within("mesh", do("distribute_module", of="m", mesh=None),
               mesh="mesh"), do("show_parameters", of="m")])


def in_parts(module, units, sizes, rows, plan=None, **options):
    """A training step of a module with sharded parameters, on this rank's rows
    of an input, and its results."""
    spread = [] if plan is None else [
        do("slice", to="tp", of="mesh", names=["tp"]),
        do("parallelize", of="m", mesh="tp", plan=plan),
        do("slice", to="dp", of="mesh", names=["dp"])]
    return [
        do("module", to="m", **module), *spread,
        do("fully_shard", of="m", units=units,
           mesh="mesh" if plan is None else "dp", **options),
        do("show_parameters", of="m"),
        tensor("t", sizes, seed=7), do("local_part", to="x", of="t", rows=rows),
        do("call", to="y", of="m", args=["$x"]), op("s", "sum", "$y"),
        show("y"), do("backward", of="s"), do("show_parameters", of="m")]


def fully_shard_cases():
    rows = ["fully_shard", "fully_shard(mesh)"]
    halves = [[0, 2], [2, 4]]
    quarters = [[0, 2], [2, 4], [4, 6], [6, 8]]
    mlp = {"kind": "mlp", "sizes": [4, 8]}
    uneven = {"kind": "mlp", "sizes": [5, 7]}
    stack = {"kind": "stack", "sizes": [4, 6]}
    for what, module, width in (("even", mlp, 4), ("uneven", uneven, 5)):
        for units in (["w1", "w2"], [""], ["w1", ""]):
            case(f"an mlp in parts, {what}, units {units} on (2,)", rows,
                 in_parts(module, units, [4, width], halves))
        case(f"an mlp in parts, {what}, on (4,)", rows,
             in_parts(module, ["w1", ""], [8, width], quarters), (4,))
        case(f"an mlp in parts, {what}, repeated", rows,
             in_parts(module, ["w1", ""], [8, width], quarters), (2, 2),
             names=["dr", "dp"])
    for reshards in (True, False, 2):
        case(f"parts that are left after forward: {reshards}",
             [*rows, "fully_shard(reshard_after_forward)"],
             in_parts(mlp, ["w1", ""], [8, 4], quarters,
                      reshard_after_forward=reshards), (4,))
    case("parts of columns", [*rows, "fully_shard(shard_placement_fn)"],
         in_parts(mlp, ["w1", "w2"], [4, 4], halves, dims={"1": 0, "2": 1}))
    case("fewer rows than ranks in parts", rows, in_parts(
        {"kind": "mlp", "sizes": [2, 3]}, [""], [8, 2], quarters), (4,))
    twice = [[0, 2], [0, 2], [2, 4], [2, 4]]
    plans = {
        "columns, then rows": {"w1": style("colwise"), "w2": style("rowwise")},
        "rows, then columns": {
            "w1": style("rowwise", input_layouts="R"),
            "w2": style("colwise", output_layouts="R")},
        "columns alone": {"w1": style("colwise", output_layouts="R")},
    }
    for name, plan in plans.items():
        for what, module, width in (("even", mlp, 4), ("uneven", uneven, 5)):
            case(f"parts of layers that are cut by {name}, {what}", rows,
                 in_parts(module, ["w1", ""], [4, width], twice, plan=plan),
                 (2, 2), names=["dp", "tp"])
    case("parts of layers of a stack that is cut", rows, in_parts(
        stack, ["layers.0", "layers.1", ""], [4, 4], twice,
        plan={"layers.*.w1": style("colwise"),
              "layers.*.w2": style("rowwise")}),
        (2, 2), names=["dp", "tp"])


# --- scopes

def loss_parallel_cases():
    for mesh, reduction, given in itertools.product(
            ((2,), (4,)), (0, 1, 2), ("S(1)", "S(0)")):
        if given == "S(0)" and mesh == (4,):
            continue
        case(f"loss parallel on {given}, reduction {reduction}, on {mesh}",
             "loss_parallel", [
                 tensor("l", [4, 8], requires_grad=True),
                 tensor("c", [4], dtype="int64", below=8),
                 distribute("x", "l", [given]), distribute("t", "c", ["R"]),
                 within("loss_parallel",
                        op("y", "cross_entropy_loss", "$x", "$t", None,
                           reduction), op("s", "sum", "$y"), show("y"),
                        do("grad", of="s", inputs=["$x"], to=["g"]),
                        show("g"))], mesh)
    for reduction in (1, 2):
        case(f"loss parallel with weights, reduction {reduction}",
             "loss_parallel", [
                 tensor("l", [4, 8], requires_grad=True),
                 tensor("c", [4], dtype="int64", below=8),
                 tensor("v", [8], positive=True),
                 distribute("x", "l", ["S(1)"]), distribute("t", "c", ["R"]),
                 distribute("w", "v", ["R"]),
                 within("loss_parallel",
                        op("y", "cross_entropy_loss", "$x", "$t", "$w",
                           reduction), show("y"),
                        do("grad", of="y", inputs=["$x"], to=["g"]),
                        show("g"))])
    case("loss parallel with a plain target", "loss_parallel", [
        tensor("l", [4, 8]), tensor("c", [4], dtype="int64", below=8),
        distribute("x", "l", ["S(1)"]),
        within("loss_parallel", op("y", "cross_entropy_loss", "$x", "$c"),
               show("y"))])
    case("loss parallel on two dimensions of a mesh", "loss_parallel", [
        tensor("l", [4, 8]), tensor("c", [4], dtype="int64", below=8),
        distribute("x", "l", ["S(1)", "S(1)"]),
        distribute("t", "c", ["R", "R"]),
        within("loss_parallel", op("y", "cross_entropy_loss", "$x", "$t"))],
        (2, 2))
    for given in ("S(0)", "S(1)", "R"):
        case(f"a loss outside of it on {given}", "loss_parallel", [
            tensor("l", [4, 8], requires_grad=True),
            tensor("c", [4], dtype="int64", below=8),
            distribute("x", "l", [given]), distribute("t", "c", ["R"]),
            op("y", "cross_entropy_loss", "$x", "$t"), show("y")])


def experimental_cases():
    mapped = ["local_map", "local_map(func)", "local_map(out_placements)",
              "local_map(in_placements)"]

    def two(first, second):
        return [tensor("t", [4, 6], requires_grad=True),
                tensor("u", [6, 4], seed=2, requires_grad=True),
                distribute("a", "t", [first]), distribute("b", "u", [second])]

    for first, second, out in [("S(0)", "R", "S(0)"), ("R", "S(1)", "S(1)"),
                               ("S(1)", "S(0)", "P(sum)"), ("R", "R", "R")]:
        case(f"local_map mm of {first} and {second}",
             [*mapped, "local_map(in_grad_placements)"], [
                 *two(first, second),
                 do("local_map", to="y", fn="mm", out=[out],
                    in_=[[first], [second]], in_grad=[
                        ["P(sum)" if first == "R" and second != "R"
                         else first],
                        ["P(sum)" if second == "R" and first != "R"
                         else second]],
                    args=["$a", "$b"]), show("y"),
                 do("full_tensor", to="f", of="y"), op("s", "sum", "$f"),
                 do("grad", of="s", inputs=["$a", "$b"], to=["ga", "gb"]),
                 show("ga", "gb")])
    for may in (True, False):
        case(f"local_map that may redistribute: {may}",
             "local_map(redistribute_inputs)", [
                 *two("S(1)", "R"),
                 do("local_map", to="y", fn="mm", out=["S(0)"],
                    in_=[["S(0)"], ["R"]], in_grad=[["S(0)"], ["P(sum)"]],
                    redistribute_inputs=may, args=["$a", "$b"]), show("y")])
    case("local_map of a number", mapped, [
        *two("S(0)", "R"),
        do("local_map", to="y", fn="scale", out=["S(0)"],
           in_=[["S(0)"], None], args=["$a", 2.0]), show("y")])
    case("local_map on a mesh that is said", "local_map(device_mesh)", [
        *two("S(0)", "R"),
        do("local_map", to="y", fn="scale", out=["S(0)"],
           in_=[["S(0)"], None], args=["$a", 2.0], mesh="$mesh"), show("y")])
    case("local_map with two results", mapped, [
        *two("S(0)", "R"),
        do("local_map", to=["y", "z"], fn="two", out=[["S(0)"], ["S(0)"]],
           in_=[["S(0)"]], args=["$a"]), show("y", "z")])
    case("local_map with too few layouts", mapped, [
        *two("S(0)", "R"),
        do("local_map", to=["y", "z"], fn="two", out=[["S(0)"]],
           in_=[["S(0)"]], args=["$a"])])
    case("local_map with a layout for a number", mapped, [
        *two("S(0)", "R"),
        do("local_map", to="y", fn="scale", out=["S(0)"],
           in_=[["S(0)"], ["R"]], args=["$a", 2.0])])
    for given in ("S(0)", "S(1)", "R"):
        case(f"implicit replication beside {given}", "implicit_replication", [
            tensor("t", [4, 6], requires_grad=True),
            tensor("p", [4, 6], seed=2), distribute("d", "t", [given]),
            within("implicit_replication",
                   op("y", "mul.Tensor", "$d", "$p"), op("s", "sum", "$y"),
                   do("grad", of="s", inputs=["$d"], to=["g"])),
            show("y", "g")])
    explicit = "ExplicitRedistributionContext(enable, strict, mode)"
    for options in ({}, {"strict": True}, {"enable": False},
                    {"mode": "warn"}):
        for first, second in (("S(0)", "S(1)"), ("S(0)", "R"),
                              ("S(0)", "S(0)")):
            case(f"explicit {options}: {first} and {second}", explicit, [
                tensor("t", [4, 6]), distribute("a", "t", [first]),
                distribute("b", "t", [second]),
                within("explicit",
                       op("y", "add.Tensor", "$a", "$b") | {
                           "watch_warnings": True}, options=options),
                show("y")])
    registered = ["register_sharding", "register_sharding(op)"]
    for first, second in itertools.product(("R", "S(0)", "S(1)"),
                                           ("R", "S(0)")):
        case(f"an operator of ours on {first} and {second}", registered, [
            tensor("t", [4, 6]), tensor("f", [4], seed=2),
            distribute("x", "t", [first]), distribute("w", "f", [second]),
            do("op", to="y", name="parity::scale_rows", args=["$x", "$w"]),
            show("y")])


def cases():
    CASES.clear()
    for make in (distribute_tensor_cases, from_local_cases,
                 redistribute_cases, to_local_cases, factory_cases,
                 placement_cases,
                 pointwise_cases, reduction_cases, matmul_cases, shape_cases,
                 network_cases, mixed_cases, mesh_cases, linear_style_cases,
                 plan_cases, sequence_cases, prepare_cases,
                 distribute_module_cases, fully_shard_cases,
                 loss_parallel_cases,
                 experimental_cases):
        make()
    names = [made["name"] for made in CASES]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, twice
    return list(CASES)
