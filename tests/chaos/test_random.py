"""Samples of the random schedules, with fixed seeds; `make chaos` plays many, `make soak` long ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.exact import STAGES, KillSchedule, stages_of
from tests.chaos.torture import Torture
from tests.chaos.weather import Weather
from tests.support.cluster import Zygote

pytestmark = pytest.mark.cluster

KILLS = 4
SAVES = 5
FAULTS = 4


SEEDS = (1, 7)


def test_the_sample_has_every_stage_of_a_round() -> None:
    assert {stage for seed in SEEDS for stage in stages_of(seed, KILLS)} == set(STAGES)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_rounds_stay_exact_while_workers_are_killed(seed: int, zygote: Zygote, tmp_path: Path) -> None:
    played = KillSchedule(seed, KILLS, zygote, tmp_path).run()
    assert played.kills == Counter(stages_of(seed, KILLS))


@pytest.mark.long
def test_every_checkpoint_is_whole_whoever_is_killed_while_it_is_written(zygote: Zygote, tmp_path: Path) -> None:
    tortured = Torture(1, SAVES, zygote, tmp_path).run()
    assert tortured.kills.total() == SAVES and tortured.restored > 0


@pytest.mark.long
def test_a_job_outlasts_faults_at_random(zygote: Zygote, tmp_path: Path) -> None:
    outlasted = Weather(2, "sync", zygote, tmp_path, FAULTS, None).run()
    assert len(outlasted.told) == FAULTS
