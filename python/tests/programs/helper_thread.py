# SPDX-License-Identifier: BSD-3-Clause
"""Waits in an operator that PyTorch calls with the GIL, while rank 1 waits for
another thread of rank 0. Then computes in another thread."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
mesh = init_device_mesh("cpu", (2,))
full = torch.arange(12.0).view(4, 3)
x = distribute_tensor(full, mesh, [Shard(0)])
x[0:3].full_tensor()  # both ranks have made their groups


def allow():
    time.sleep(0.5)  # the other thread is inside the operator by now
    store.set("allowed", "")


if dist.get_rank() == 0:
    thread = threading.Thread(target=allow)
    thread.start()
else:
    store.wait(["allowed"])
rows = x[1:4]
assert torch.equal(rows.full_tensor(), full[1:4])
if dist.get_rank() == 0:
    thread.join()

# A thread that makes no mesh computes and communicates for the rank of the process.
with ThreadPoolExecutor(1) as executor:
    double = executor.submit(lambda: (x * 2).full_tensor()).result()
assert torch.equal(double, 2 * full)
dist.destroy_process_group()
sys.stdout.write("correct\n")
