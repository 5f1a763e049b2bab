"""psruntime tables: what it shows and exports is what was trained."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from tests.graph.embedding.test_dynamic_tables import data, model_of, reference
from tests.support.docs import ROOT
from tests.support.dynamic_reference import WIDTH, DynamicReference
from tests.support.local_cluster import LocalCluster, train

pytestmark = pytest.mark.long

STEPS = 30


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DynamicReference]:
    ids, labels = data()
    folder = tmp_path_factory.mktemp("checkpoints")
    train(LocalCluster(2), model_of(ids, labels, 2), STEPS, checkpoint_dir=str(folder))
    return folder, reference(ids, labels, STEPS, admit_after=2)


def tables(*flags: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "psruntime", "tables", *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_sizes_counts_and_the_hottest_ids_are_shown(trained: Any) -> None:
    folder, known = trained
    shown = tables("--checkpoint-dir", folder, "--json", "--hottest", 3)
    assert shown.returncode == 0, shown.stderr
    (told,) = json.loads(shown.stdout).values()
    hottest = told.pop("hottest")
    rows = {number: row for place in known.sets for number, row in place.rows.items()}
    assert told == {"table": "table", "rows": 96, **known.counts}
    assert [each["seen"] for each in hottest] == sorted((row.seen for row in rows.values()), reverse=True)[:3]
    for each in hottest:
        assert rows[each["id"]].seen == each["seen"] and known.clock - rows[each["id"]].used == each["idle"]
    text = tables("--checkpoint-dir", folder).stdout
    assert "hit rate" in text and str(hottest[0]["id"]) in text


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_ids_and_embeddings_are_exported(kind: str, trained: Any, tmp_path: Path) -> None:
    folder, known = trained
    path = tmp_path / f"table.{kind}"
    shown = tables("--checkpoint-dir", folder, "--export", path)
    assert shown.returncode == 0, shown.stderr
    if kind == "npz":
        exported = np.load(path)
        ids, vectors = exported["ids"].tolist(), exported["vectors"]
    else:
        columns = parquet.read_table(path).to_pydict()
        ids, vectors = columns["id"], np.array(columns["vector"])
    rows = {number: row.values for place in known.sets for number, row in place.rows.items()}
    assert sorted(ids) == sorted(rows) and vectors.shape == (len(rows), WIDTH)
    for number, vector in zip(ids, vectors, strict=True):
        np.testing.assert_allclose(vector, rows[number], atol=1e-5)


def test_a_newer_delta_is_named(trained: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(trained[0], tmp_path / "copy")
    delta = folder / f"model.ckpt-{STEPS}.delta-99"
    Path(f"{delta}.index").touch()
    shown = tables("--checkpoint-dir", folder)
    assert shown.returncode == 0 and f"the rows of the newer {delta} are not in it" in shown.stderr


@pytest.mark.parametrize(
    "flags, said",
    [
        ((), "--checkpoint-dir is missing: the folder of the job's checkpoints"),
        (("--checkpoint-dir", "{empty}"), "{empty} has no checkpoint"),
        (("--checkpoint-dir", "{folder}", "--table", "x"), "there is no dynamic table x; there are table (--table)"),
        (("--checkpoint-dir", "{folder}", "--export", "x.csv"), "--export must end with .npz or .parquet, got 'x.csv'"),
        (
            ("--checkpoint-dir", "{folder}", "--export", "{empty}/no/x.npz"),
            "{empty}/no/x.npz cannot be written: No such file or directory",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(flags: tuple[str, ...], said: str, trained: Any, tmp_path: Path) -> None:
    names = {"folder": trained[0], "empty": tmp_path}
    shown = tables(*(flag.format(**names) for flag in flags))
    assert shown.returncode == 2 and shown.stdout == ""
    assert said.format(**names) in shown.stderr and shown.stderr.count("\n") == 1, shown.stderr
