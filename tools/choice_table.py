#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares chosen layouts of operators with those of torch.distributed.tensor.

    tools/choice_table.py [--list build/dev/tests/dtensor_choice_list]

Prints the table of docs/concepts/operators.md: for random calls of each family
of rules, the modelled time of this library's choices and of Python's, both by this
library's model. These calls are left out: calls that Python does not decide in ten
seconds, calls for which Python's layouts have no plan, and calls for which Python's
layouts give an error or wrong values. (Each call is computed on the local tensors of all
ranks, and the joined results are compared with the result of the plain operator.) Exits
with 1 if a family costs 0.1 % more than with Python's choices, or if Python decides no
call, and with 77 if Python has another propagator.
"""

import argparse
import collections
import logging
import math
import signal
import subprocess
import sys
import warnings

import plan_table
from sharded_values import (LocalTensors, ShardedValues, flat_list, map_specs,
                            pick_rank, results_of, tensors_in)

SECONDS = 10  # for one choice
TOLERANCE = 1e-3  # of a family's time
DTYPES = {"f32": "float32", "f64": "float64", "i64": "int64", "bool": "bool",
          "c64": "complex64", "i32": "int32", "u8": "uint8"}


class Python(plan_table.Python):
    """Choices of torch.distributed.tensor for operator calls."""

    def __init__(self):
        super().__init__()
        from torch.distributed.tensor import DTensor
        self.dispatcher = DTensor._op_dispatcher
        if not hasattr(self.dispatcher.sharding_propagator,
                       "propagate_op_sharding_non_cached"):
            print("choice_table: this PyTorch has another propagator")
            sys.exit(77)
        # ScalarType of an argument by its number in C++.
        names = ("uint8 int8 int16 int32 int64 float16 float32 float64 "
                 "complex32 complex64 complex128 bool")
        self.dtypes = [getattr(self.torch, name) for name in names.split()]

    def placements(self, text):
        from torch.distributed.tensor import Partial, Replicate, Shard
        made = []
        for word in text.split():
            if word == "R":
                made.append(Replicate())
            elif word == "P(sum)":
                made.append(Partial())
            else:
                made.append(Shard(int(word[2:-1])))
        return tuple(made)

    def tensor(self, mesh, text):
        """Returns a DTensor on the meta device."""
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
        sizes, layout, dtype = text.split(",")
        sizes = plan_table.numbers(sizes) if sizes else ()
        dtype = getattr(self.torch, DTYPES[dtype])
        whole = self.torch.empty(sizes, dtype=dtype, device="meta")
        placements = self.placements(layout)
        local, _ = compute_local_shape_and_global_offset(sizes, mesh, placements)
        meta = TensorMeta(whole.shape, whole.stride(), dtype)
        return DTensor(
            self.torch.empty(local, dtype=dtype, device="meta"),
            DTensorSpec(mesh, placements, tensor_meta=meta),
            requires_grad=False)

    def operator(self, name):
        namespace, name = name.split("::")
        name, _, overload = name.partition(".")
        return getattr(getattr(getattr(self.torch.ops, namespace), name),
                       overload or "default")

    def call(self, op, text, tensors):
        """Returns the arguments of an operator, from their text."""
        values = eval(text, {"T": tensors.__getitem__, "inf": math.inf,
                             "nan": math.nan})
        args, kwargs = [], {}
        for value, argument in zip(values, op._schema.arguments):
            if "ScalarType" in str(argument.type) and isinstance(value, int):
                value = self.dtypes[value]
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return tuple(args), kwargs

    def choose(self, shape, name, arguments, tensors):
        """Returns the layouts of inputs and results that Python chooses."""
        mesh = self.mesh(shape, False)
        op = self.operator(name)
        tensors = [self.tensor(mesh, text) for text in tensors]
        args, kwargs = self.call(op, arguments, tensors)
        schema = self.dispatcher.unwrap_to_op_info(op, args, kwargs).schema
        sharding = (self.dispatcher.sharding_propagator
                    .propagate_op_sharding_non_cached(schema))
        local_schema = sharding.redistribute_schema or schema
        inputs = local_schema.args_spec
        outputs = sharding.output_spec
        if not isinstance(outputs, (tuple, list)):
            outputs = [outputs]
        if len(inputs) != len(tensors):
            raise NotImplementedError("a tensor is a keyword")
        # Fills uninitialized memory, so that results can be compared.
        self.torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            is_wrong = self.gives_wrong_values(
                op, shape, args, kwargs, local_schema, outputs)
        finally:
            self.torch.use_deterministic_algorithms(False)
        if is_wrong:
            raise WrongValues(inputs, outputs)
        return inputs, outputs

    def gives_wrong_values(self, op, shape, args, kwargs, local_schema, outputs):
        """Computes the call on full tensors and on the local tensors of each rank.

        Returns True if the local calls fail or their joined results differ. Returns
        False for calls that this function cannot compare.
        """
        if op in getattr(self.dispatcher, "_custom_op_handlers", {}):
            return False  # Python does not call the operator on local tensors.
        return any(
            self.differs(op, ShardedValues(self.torch, shape, are_zeros), args, kwargs,
                         local_schema, outputs)
            for are_zeros in (False, True))

    def differs(self, op, values, args, kwargs, local_schema, outputs):
        """Returns the result of gives_wrong_values() for some values."""
        full = map_specs(args, lambda tensor: values.draw(tensor))
        try:
            expected, again = ([*results_of(op(*full, **kwargs))] for _ in range(2))
            parts = iter([
                values.split(value, spec.placements) for value, spec in
                zip(tensors_in(full), local_schema.args_spec)])
            lists = self.like_arguments(
                args, map_specs(local_schema.args_schema, lambda _: next(parts)))
            local_kwargs = local_schema.kwargs_schema
        except Exception:  # Random values do not fit, or the layout is another one.
            return False
        if lists is None or not all(map(values.is_close, expected, again)):
            return False  # a random operator, or arguments of another form
        if values.are_zeros and not all(t.isfinite().all() for t in expected):
            return False  # such as 0 / 0
        ranks = math.prod(values.shape)
        try:
            results = [
                [*results_of(op(*pick_rank(lists, rank), **local_kwargs))]
                for rank in range(ranks)]
        except TimeoutError:
            raise
        except Exception:
            return True
        try:
            joined = [
                values.join([result[i] for result in results], spec.placements)
                for i, spec in enumerate(outputs) if spec is not None]
        except NotImplementedError:
            return False
        except RuntimeError:  # Sizes do not fit.
            return True
        known = [
            value for value, spec in zip(expected, outputs) if spec is not None]
        return not all(map(values.is_close, joined, known))

    def like_arguments(self, args, values):
        """Returns the values in lists like those of the arguments.

        Returns None if other arguments than tensors differ: Python then passes sizes
        that depend on the rank.
        """
        tree = self.torch.utils._pytree
        flat, form = tree.tree_flatten(args)
        local = flat_list(values)
        if len(flat) != len(local) or any(
                one != other for one, other in zip(flat, local)
                if not isinstance(other, LocalTensors)):
            return None
        return list(tree.tree_unflatten(local, form))


class WrongValues(Exception):
    """Layouts of Python for which the operator computes other values."""


def layout_text(spec, mesh_dims):
    if spec is None:
        return " ".join(["R"] * mesh_dims)
    return " ".join(
        f"SS({p.dim}, sf={p.split_factor})" if hasattr(p, "split_factor") else str(p)
        for p in spec.placements)


def stop(*_):
    raise TimeoutError


def leave_modes():
    """Leaves the dispatch modes in which a failed decomposition of Python stays."""
    from torch.utils import _python_dispatch
    while _python_dispatch._get_current_dispatch_mode_stack():
        _python_dispatch._pop_mode()


def choices(python, calls, verbose):
    """Yields the text of Python's layouts of each call; empty if it has none."""
    signal.signal(signal.SIGALRM, stop)
    for call in calls:
        shape, _, name, arguments, tensors, _, ours = call
        signal.alarm(SECONDS)
        try:
            inputs, outputs = python.choose(
                plan_table.numbers(shape), name, arguments,
                tensors.split("|")[:-1])
        except WrongValues as error:
            if verbose:
                layouts = [layout_text(spec, len(shape.split("x")))
                           for specs in error.args for spec in specs]
                print("wrong values:", *call, "Python:", "|".join(layouts))
            yield ""
            continue
        except TimeoutError:
            # An interrupted import may leave PyTorch without some operators.
            print("choice_table: timeout of", *call, file=sys.stderr)
            yield ""
            continue
        except Exception as error:  # many types for operators without rule
            if verbose:
                print("undecided:", *call[:3], repr(error)[:100])
            yield ""
            continue
        finally:
            signal.alarm(0)
            leave_modes()
        dims = len(shape.split("x"))
        texts = [layout_text(spec, dims) for spec in (*inputs, *outputs)]
        yield "|".join(texts) if len(texts) == len(ours.split("|")) else ""


def costs(program, lines):
    output = subprocess.run(
        [program, "costs"], input="".join(line + "\n" for line in lines),
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return output.stdout.splitlines()


def compare(program, verbose):
    listed = subprocess.run(
        [program], check=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True).stdout
    calls = [line.split(";") for line in listed.splitlines()]
    theirs = list(choices(Python(), calls, verbose))
    families = collections.defaultdict(lambda: [0, 0, 0, 0, 0.0, 0.0])
    for call, layouts, cost in zip(calls, theirs, costs(program, theirs)):
        row = families[call[1]]
        row[0] += 1
        if not layouts or math.isinf(float(cost)):
            continue
        ours, cost = float(call[5]), float(cost)
        row[1] += 1
        row[2] += ours < cost
        row[3] += ours > cost
        row[4] += ours
        row[5] += cost
        if verbose and ours > cost:
            print("more:", *call, "Python:", cost, layouts)
    return families


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", default=str(
        plan_table.ROOT / "build/dev/tests/dtensor_choice_list"))
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    families = compare(args.list, args.verbose)
    print("| family | calls | decided by Python | dtensor cheaper / dearer | "
          "modelled us, dtensor | Python |")
    print("|---" * 6 + "|")
    worse = False
    for name, (calls, decided, less, more, ours, theirs) in sorted(
            families.items()):
        print(f"| {name} | {calls} | {decided} | {less} / {more} | {ours:.1f} | "
              f"{theirs:.1f} |")
        worse |= ours > theirs * (1 + TOLERANCE)
    if not any(decided for _, decided, *_ in families.values()):
        print("choice_table: Python decided no call")
        worse = True
    sys.exit(worse)


if __name__ == "__main__":
    main()
