# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that are threads with PyTorch's threaded process groups."""

import os
import sys
import threading
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import _set_thread_isolation_mode
from torch.distributed import distributed_c10d as c10d
from torch.testing._internal.distributed import multi_threaded_pg

sys.path.insert(0, str(Path(__file__).parent))
from python_groups import main  # noqa: E402

RANKS = 2
errors = []


def rank_thread(rank, store):
    try:
        main("threaded", rank=rank, world_size=RANKS, store=store)
    except BaseException as error:
        multi_threaded_pg.ProcessLocalGroup.exception_handle(error)
        errors.append(error)


os.environ["DTENSOR_BACKEND"] = sys.argv[1]
c10d._world = multi_threaded_pg.ThreadLocalWorld()
_set_thread_isolation_mode(True)
store = dist.HashStore()
threads = [
    threading.Thread(target=rank_thread, args=(rank, store)) for rank in range(RANKS)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if errors:
    raise errors[0]
sys.stdout.write("correct\n")
