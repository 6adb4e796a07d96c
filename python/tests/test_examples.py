# SPDX-License-Identifier: BSD-3-Clause
"""Tests of examples/python, which need packages that tools/setup.sh does not
install."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples/python"


def skip_without(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}; pip install {' '.join(packages)}")


@pytest.mark.parametrize("ranks", [2, 3])
def test_llama_of_transformers(torchrun, ranks):
    skip_without("transformers", "accelerate")
    output = torchrun(str(EXAMPLES / "llama.py"), ranks=ranks)
    assert "15 sharded parameters; 16 tokens, their logits and the gradients" in output
