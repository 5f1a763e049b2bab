"""examples/digits.ipynb in a real kernel: its cells run, its progress is one line, and it learns the digits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.docs import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.mark.timeout(600)
def test_the_cells_run_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: there is no kernel to run cells in")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: there is no kernel to run cells in")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(ROOT / "examples/digits.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the file has no outputs"
    nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    _, _, _, trained, plotted = notebook.cells
    progress, metrics = (texts_of(trained, kind)[0] for kind in ("display_data", "execute_result"))
    assert progress.startswith("DONE step 40") and "\x1b" not in progress
    assert float(metrics.partition("'accuracy': ")[2].rstrip("}").partition(",")[0]) > 0.9
    assert any("image/png" in output.get("data", {}) for output in plotted.outputs)


def texts_of(cell: Any, kind: str) -> list[str]:
    return [output.data["text/plain"] for output in cell.outputs if output.output_type == kind]
