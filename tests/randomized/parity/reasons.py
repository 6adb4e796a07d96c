# SPDX-License-Identifier: BSD-3-Clause
"""Reasons for differences of parity cases from Python, and rows without a case."""

import re

# Python's class of an error -> ours, if both mean the same. Ours are those of
# at::Tensor's own checks.
SAME_ERROR = {
    ("AssertionError", "ValueError"), ("AssertionError", "TypeError"),
    ("KeyError", "IndexError"), ("KeyError", "ValueError"),
    ("RuntimeError", "ValueError"), ("RuntimeError", "IndexError"),
    ("RuntimeError", "TypeError"),
}
BAD_ARGUMENT = (
    "A bad argument is a ValueError, IndexError or TypeError, as LibTorch's own "
    "checks have it; Python asserts, or raises what is at hand")

# (reason, regex of the case, regex of the difference)
REASONS = [
    # Python is wrong.
    ("Random factories: Python has no random numbers on CPU meshes and fails "
     "an assertion", r"^randn? ", r"^error$"),
    ("Ranks in no order: Python sorts the ranks of a group, so that the place "
     "of a rank in the group is another than its coordinate, and a shard goes "
     "to another rank than the layout says",
     r"^a mesh of (the|some) ranks \[+[23]", r"local_ranks|groups|values"),
    ("Placements too many for the mesh: Python ignores them",
     r"^redistribute with too many placements", r"^error$"),
    ("Gradients in a layout that has another shape: Python fails in the "
     "backward pass, or returns a gradient of another shape",
     r"^(from_local|to_local of) .*with gradient", r"^error$"),
    ("argmax along a cut dimension: Python gathers values and indices apart, "
     "ours together", r"^argmax", r"counts"),
    ("Embedding cut along its rows: Python leaves the gradient whole on every "
     "rank, ours is cut as the weight is",
     r"^rowwise of an Embedding", r"placements"),
    ("A pattern that matches nothing is most often a typing error: an error, "
     "where Python warns", r"^a pattern that matches nothing", r"error|warned"),
    ("Warnings: Python writes this one to a log, not as a warning",
     r"^explicit .*warn", r"warned"),
    ("Values that are the same on every rank would add up: an error, where "
     "Python makes a tensor of other values than asked for",
     r"^(ones|full) as a partial sum", r"^error$"),
    ("An unknown reduction is an error where it is named, not where it is used",
     r"^from_local of an unknown reduction", r"^error$"),
    # C++ supports more.
    ("Into a partial sum: one rank keeps the values, the others have zeros; "
     "Python refuses", r"^redistribute .*to (P\(sum\)|a partial sum)",
     r"^error$"),
    ("A shape alone is enough: strides are row-major by default",
     r"^from_local with a shape alone", r"^error$"),
    ("Loss parallel on a batch that is cut: Python refuses",
     r"^loss parallel on S\(0\)", r"^error$"),
    ("What is distributed stays so: to do it again does nothing; Python "
     "refuses", r"^a module distributed twice", r"^error$"),
    # C++ behaves differently by design.
    ("Gradients are never left partial sums by a redistribution",
     r"^full_tensor of P\(sum\) with gradient \['P\(sum\)'\]",
     r"placements|counts"),
    ("Terms of a gradient in layout P(sum): the first rank has it all, Python "
     "divides it; both add up to the same",
     r"^from_local .* with gradient P\(sum\)", r"values"),
    ("Gradients of replicated parameters of a norm are summed over the ranks, "
     "once per backward pass, where Python leaves partial sums; and its "
     "parameters are made equal at the start, where Python takes them to be so",
     r"^a LayerNorm (along|of)", r"placements|counts"),
    ("run_check compares as texts, not as pickled objects, which is not counted",
     r"^from_local with run_check=True", r"counts"),
    ("Along a mesh dimension of one rank nothing is sent",
     r"^operands on two meshes", r"counts"),
    ("Means over a cut dimension are sums of this rank's share, P(sum), which "
     "is right for uneven parts too, where Python has P(avg)",
     r"^mean", r"placements"),
    ("A norm over a cut dimension comes out whole: a norm of norms is no "
     "reduction that a layout can name",
     r"^linalg_vector_norm", r"placements|counts"),
    ("any and all of parts are a maximum and a minimum of bools",
     r"^(any|all)\.dim", r"placements"),
    ("The mean of a loss over a cut batch comes out whole, since it is the "
     "quotient of two sums", r"^a loss outside of it on S\(0\)",
     r"placements|counts"),
    ("The bias is added after the sum over ranks, once, so its gradient is "
     "reduced, or gathered, by itself", r"^rowwise with output_layouts S",
     r"counts"),
    ("torch::nn::Linear of C++ adds the bias of an input of three dimensions to "
     "its output, which has left the module's layout: it is gathered for that",
     r"^colwise with output_layouts", r"counts"),
    ("A product of two sums: both become shards, which sends less than to make "
     "one whole and to reduce the product; Python makes one whole",
     r"^mul\.Tensor of P\(sum\) and P", r"placements|counts"),
    ("Gradients of max() and min() of everything: LibTorch's formula on CPU "
     "fills a tensor of zeros, which is not cut",
     r"^(max|min) of S", r"placements|counts"),
    ("The gradient of prod() takes one more gather: LibTorch's formula on CPU "
     "asks for a value first", r"^prod of S", r"counts"),
    ("One operand moves, as in Python, but another one: both cost the same",
     r"^b?mm of S\(\d\) and S", r"placements|counts"),
    ("A DTensor in another layout than the style wants: moved by one "
     "all-to-all, and the sum is reduced; Python gathers input and weight",
     r"^rowwise of a DTensor", r"counts"),
    ("Cumulative operators work on shards, and exchange one slice of each; "
     "Python gathers", r"^cumsum of S", r"placements|counts"),
    ("A dimension that has to be whole: the cut goes to another one, by one "
     "all-to-all, where Python gathers everything",
     r"^(softmax|log_softmax|layer_norm|split|chunk|slice|select|flip|roll|"
     r"constant_pad_nd|cat|index_select|gather|topk|sort|cumsum|var)\b|^var\.|"
     r"^constant_pad_nd", r"placements|counts"),
    ("Several mesh dimensions change by one collective over all of them; Python "
     "takes one collective after the other", r"^redistribute S\(\d\) S\(\d\) to",
     r"^counts$"),
    ("What forward has used last is kept until backward, which begins with it: "
     "one gather less",
     r"^parts that are left after forward: (True|2)$|^parts of layers of a stack",
     r"^counts$"),
    ("Plain tensors between modules that are parts of unlike sizes: Python takes "
     "the parts of all ranks to be as large as this one's, and fails",
     r"^parts of layers that are cut by columns, then rows, uneven$", r"^error$"),
]

# (reason, regex of the line) of differences of our Python package from C++. What
# surrounds DTensor is PyTorch's there.
PACKAGE_REASONS = [
    ("Meshes and process groups are PyTorch's, which sorts the ranks of a group",
     r"^a mesh of (the|some) ranks \[+[23]"),
    ("The package raises PyTorch's class of the error",
     r"\| error \| \w+ at (\w+) \| \w+ at \1$"),
    ("Collectives over several mesh dimensions need groups of this library; the "
     "package's are PyTorch's",
     r"^redistribute S\(\d\) S\(\d\) to .*\| counts"),
    ("The package refuses what PyTorch refuses, and C++ does not: a new Partial, "
     "a shape without strides, a module distributed twice",
     r"^(redistribute .*(P\(sum\)|partial sum)|from_local with a shape alone|"
     r"a module distributed twice)"),
    ("Styles are PyTorch's: conversions are collectives of their own, parameters "
     "of LayerNorm are not broadcast, and shards are taken to be even",
     r"^(colwise|rowwise|a LayerNorm|a pattern that matches nothing|"
     r"parts of layers that are cut by columns, then rows, uneven)"),
    ("fully_shard is PyTorch's, which gathers in backward what forward used last",
     r"^parts (that are left|of layers of a stack)"),
    ("The gradients of max, min and prod have another formula in LibTorch while a "
     "dispatch mode such as CommDebugMode is active",
     r"^(max|min|prod) of S"),
    ("Inside CommDebugMode, PyTorch prints warnings of C++ instead of raising "
     "Python's", r"^explicit .*warned"),
]

# Rows of docs/reference/api.md without a case, with the reason.
EXCEPTED = [
    # Ranks that are threads have one backend: tests/comm/init_device_mesh_test.cpp.
    r"backend_override\)$",
    # Python's requires a package that is not installed. Our tables are tested
    # in tests/debug/visualize_sharding_test.cpp.
    r"^visualize_sharding",
    # Python has no random numbers on CPU meshes.
    r"^_random\.manual_seed",
    # Python's runs on GPUs only. tests/parallel/context_*.
    r"^context_parallel",
    # Effects of steps on a unit, and dtypes: tests/data_parallel.
    r"^fully_shard\((mp_policy|ignored_params|offload_policy)\)",
    r"^FSDPModule|^replicate$",
    # PyTorch 2.0: not in the installed package.
    r"^enable_2d_with_fsdp",
    # Python's takes the styles that ours finds. tests/program.
    r"^tp_transform$",
    # PyTorch 2.0: not in the installed package. tests/contrib/legacy_tp.
    r"^PairwiseParallel|^TensorParallelMultiheadAttention|^make_(in|out)put",
    r"tp_mesh_dim\)$", r"^the swap to it",
]


def reason_of(name, facet, python, ours):
    if facet == "error" and python != "none" and ours != "none":
        first, at = python.split(" at ")
        second, there = ours.split(" at ")
        if at == there and (first, second) in SAME_ERROR:
            return BAD_ARGUMENT
    for why, case, what in REASONS:
        if re.search(case, name) and re.search(what, facet):
            return why
    return None


def package_reason_of(*parts):
    line = " | ".join(parts)
    for why, pattern in PACKAGE_REASONS:
        if re.search(pattern, line):
            return why
    return None


def all_reasons():
    return [BAD_ARGUMENT, *(why for why, _, _ in REASONS)]


def is_excepted(row):
    return any(re.search(one, row) for one in EXCEPTED)
