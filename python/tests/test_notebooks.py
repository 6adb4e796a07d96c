# SPDX-License-Identifier: BSD-3-Clause
"""Runs the notebooks of docs/notebooks in Jupyter's kernel, and compares their outputs
with the stored ones. With DTENSOR_UPDATE_GOLDEN=1, stores the outputs instead.
"""

import copy
import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).parents[2] / "docs/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def outputs(cell) -> list[tuple[str, object]]:
    return [(o.output_type, o.get("data", o.get("text"))) for o in cell.outputs]


def execute(notebook, folder: Path):
    """Returns the notebook with the outputs of a new run."""
    done = copy.deepcopy(notebook)
    client = nbclient.NotebookClient(
        done,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )
    client.execute()
    return done


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_those_of_a_run(path, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    done = execute(notebook, tmp_path)
    if os.environ.get("DTENSOR_UPDATE_GOLDEN"):
        nbformat.write(done, path)
        return
    for stored, new in zip(notebook.cells, done.cells, strict=True):
        if stored.cell_type == "code":
            assert outputs(stored) == outputs(new), stored.source
