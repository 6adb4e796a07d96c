# SPDX-License-Identifier: BSD-3-Clause
"""Programs for torch.distributed.tensor on the C++ library dtensor.

``import dtensor.as_torch`` as the first line of a program, or
``python -m dtensor program.py``, replaces the DTensor of this process. Names
of ``torch.distributed.tensor`` keep their meaning. The functions of this module are
those that ``torch.distributed.tensor`` does not have.
"""

import torch  # noqa: F401  (loads the libraries that _C needs)

from dtensor._C import is_dtensor
from dtensor.rank_threads import run_world
from dtensor.scopes import on_missing_rule

__all__ = ["is_dtensor", "on_missing_rule", "run_world"]
