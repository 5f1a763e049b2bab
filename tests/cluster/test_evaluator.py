"""An evaluator that ends the job, and keeps its best checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.cluster import Zygote, cluster

pytestmark = pytest.mark.cluster

MODEL = "psruntime.examples.digits"
PATIENCE = 3


@pytest.mark.long
def test_a_job_whose_accuracy_gets_no_better_ends_with_its_best_checkpoint(zygote: Zygote, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with cluster(zygote, tmp_path, min_workers=2, save_steps=100, checkpoint_dir=folder) as job:  # without an end
        flags = [f"--coordinator={job.coordinator}", f"--model={MODEL}", "--metric=accuracy", f"--patience={PATIENCE}"]
        evaluator = zygote.start("evaluator", ["evaluator", *flags], tmp_path / "evaluator.log", [str(tmp_path)])
        job.procs.append(evaluator)
        for index in range(2):
            job.start_worker(index, f"--model={MODEL}")
        codes = job.wait_all()
        assert set(codes.values()) == {0}, codes
        why = re.search(
            r'stops_early reason="accuracy got .* in 3 checkpoints: best was (.*) at .* (\d+)"', evaluator.text
        )
        assert why and "drained by control" in job.latest("ps", 0).text
    lines = [json.loads(line) for line in (folder / "eval" / "evaluations.jsonl").read_text().splitlines()]
    accuracy = {line["global_step"]: line["metrics"]["accuracy"] for line in lines if "metrics" in line}
    assert "stopped_early" in lines[-1] and lines[-1]["global_step"] == max(accuracy), "it counts for no other job"
    best = json.loads((folder / "best" / "best.json").read_text())
    assert best["value"] == max(accuracy.values()) and accuracy[best["global_step"]] == best["value"]
    assert (folder / "best" / f"{best['checkpoint']}.index").exists()
    assert len(accuracy) > PATIENCE and max(accuracy) > int(why[2])
    assert f"model.ckpt-{max(accuracy)}" in (folder / "checkpoint").read_text(), "the last one is measured, too"
