"""What `psruntime init --from` writes trains at once, and beats a guess without any column on held-out data."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf1

from psruntime import cli
from psruntime.model import load_model
from tests.own_data.tables import TABLES, write
from tests.support.plain import train
from tests.support.selection import long_but

BETTER = {  # table -> metric, its trivial value and the least gain; a negative gain: the less the better
    "loans": ("auc", 0.5, 0.15), "plants": ("accuracy", 0.48, 0.1), "flats": ("rmse", 320, -60),
    "sensors": ("auc", 0.5, 0.2), "reviews": ("rmse", 1.56, -0.4),
}  # fmt: skip


@pytest.mark.parametrize("name", long_but(["loans"], TABLES))
def test_the_held_out_metric_is_better_than_the_trivial_guess(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    files, label = write(name, tmp_path)
    assert cli.main(["init", name, "--from", *map(str, files), *(["--label", label] if label else [])]) == 0
    try:
        model = load_model(name)
        metric, trivial, gain = BETTER[name]
        reached = train(model, "", 128, 80, 0)[metric]
        assert (reached - trivial - gain) * gain > 0, reached
        module = importlib.import_module(name)
        with tf1.Graph().as_default():
            features, given = module.serving_input_fn()
            assert set(given) <= set(module.COLUMNS) - {module.LABEL} and set(features)
    finally:
        sys.modules.pop(name, None)
