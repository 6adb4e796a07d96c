# SPDX-License-Identifier: BSD-3-Clause
"""The wheel's dependencies: the minor version of torch that the wheel is built
with, because the library uses this version's C++ interface."""

import torch

__all__ = ["dynamic_metadata"]


def dynamic_metadata(field, settings=None, project=None):
    """Returns the value of ``project.dependencies``, for scikit-build-core."""
    major, minor = torch.__version__.split(".")[:2]
    return [f"torch=={major}.{minor}.*"]
