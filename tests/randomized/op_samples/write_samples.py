#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Records the operator calls of PyTorch's own samples (op_db), for the test "op
samples".

write_samples.py RECORDER_LIBRARY OUTPUT [--only REGEX]

Every sample runs as in PyTorch's tests; the recorder writes each call that
reaches the dispatcher. Exits with 77 if this Python cannot do it.
"""

import argparse
import ctypes
import itertools
import os
import re
import sys
import warnings

# Number of calls of an overload that an entry may add, by dtype.
DTYPES = {
    "float64": 6,
    "complex128": 2,
    "int64": 3,
    "bool": 2,
    "float32": 1,
}
PER_OVERLOAD = 24  # per dtype
SAMPLES = 60  # tried per entry and dtype


def restart_with_fixed_hashes():
    """Runs this program again with fixed hashes, so that sets of strings have a
    fixed order.

    Some samples are in the order of a set.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def up_to_date(output, sources):
    return os.path.exists(output) and all(
        os.path.getmtime(source) < os.path.getmtime(output)
        for source in sources)


def load_torch():
    """Imports torch and op_db, which takes a long time."""
    try:
        import torch
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        print(f"op samples: skipped, {error}; tools/setup.sh installs it")
        sys.exit(77)
    torch.set_num_threads(1)
    return torch, op_db


def open_recorder(path):
    recorder = ctypes.CDLL(path)
    recorder.op_samples_start.restype = ctypes.c_uint64
    recorder.op_samples_stop.argtypes = [ctypes.c_uint64]
    return recorder


def call(recorder, function, sample):
    handle = recorder.op_samples_start()
    try:
        function(sample.input, *sample.args, **sample.kwargs)
    except Exception:  # the sample tests an error
        pass
    finally:
        recorder.op_samples_stop(handle)


def samples_of(op, dtype):
    differentiable = op.supports_autograd and (
        dtype.is_floating_point or dtype.is_complex)
    try:
        yield from itertools.islice(
            op.sample_inputs("cpu", dtype, requires_grad=differentiable),
            SAMPLES)
    except Exception as error:
        print(f"op samples: {op.name} {dtype}: {error}", file=sys.stderr)


def errors_of(op):
    if op.error_inputs_func is None:
        return
    try:
        for error in itertools.islice(op.error_inputs("cpu"), SAMPLES):
            yield error.sample_input
    except Exception as error:
        print(f"op samples: {op.name}: {error}", file=sys.stderr)


def record_entry(torch, recorder, op):
    for name, count in DTYPES.items():
        dtype = getattr(torch, name)
        if not op.supports_dtype(dtype, "cpu"):
            continue
        recorder.op_samples_entry(count)
        torch.manual_seed(0)
        for sample in samples_of(op, dtype):
            call(recorder, op.op, sample)
    recorder.op_samples_entry(4)
    torch.manual_seed(0)
    for sample in errors_of(op):
        call(recorder, op.op, sample)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recorder")
    parser.add_argument("output")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if up_to_date(options.output, [options.recorder, __file__]):
        print("op samples: nothing to do for", options.output)
        return
    restart_with_fixed_hashes()
    warnings.simplefilter("ignore")
    torch, op_db = load_torch()
    recorder = open_recorder(options.recorder)
    partial = options.output + ".partial"
    recorder.op_samples_open(partial.encode(), PER_OVERLOAD)
    for op in op_db:
        if re.search(options.only, op.name):
            record_entry(torch, recorder, op)
    print(f"op samples: {recorder.op_samples_close()} calls in", options.output)
    os.replace(partial, options.output)


if __name__ == "__main__":
    main()
