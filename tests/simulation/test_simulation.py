"""Schedules from seeds: a new range at each commit, and what went wrong once; the simulation itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from psruntime.config.schedule import ASYNC, BOUNDED, SYNC
from tests.simulation.cluster import outcome
from tests.simulation.mutants import FOUND_BY, MUTANTS, Mutant
from tests.support.cluster import ROOT

PLAYED = {SYNC: 40, ASYNC: 20, BOUNDED: 20}  # schedules of an everyday run, about 6 s
ALL = 500  # of a long one, of each mode
TRACED = ((564, SYNC), (3, ASYNC), (7, BOUNDED))


def first_seed() -> int:
    """Another range at each commit."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return int(head[:6] or "0", 16) * ALL


def check(seeds: range, mode: str) -> None:
    wrong = {seed: found[0] for seed in seeds if (found := outcome(seed, mode)[0])}
    assert not wrong, f"of {seeds}: python -m tests.simulation --mode {mode} --seed N --smaller"


@pytest.mark.parametrize("mode", PLAYED)
def test_no_schedule_of_a_new_range_goes_wrong(mode: str) -> None:
    check(range(first_seed(), first_seed() + PLAYED[mode]), mode)


@pytest.mark.long
@pytest.mark.parametrize("mode", PLAYED)
def test_no_schedule_of_a_long_new_range_goes_wrong(mode: str) -> None:
    check(range(first_seed(), first_seed() + ALL), mode)


@pytest.mark.parametrize(("seed", "mode"), [(30, SYNC), (564, SYNC), (234, ASYNC)])
def test_what_went_wrong_once_does_not_again(seed: int, mode: str) -> None:
    """30: a worker dropped the batch of a contribution to an attempt that became void, when a round closed without it.
    564: a contribution that was cut off was sent again in a session after a checkpoint, and was in the sum twice.
    234: workers that were no members for a while took steps beyond the last one of the job.
    """
    check(range(seed, seed + 1), mode)


def test_a_seed_has_one_trace() -> None:
    code = "import sys\nfrom tests.simulation.cluster import outcome\n"
    code += "print([outcome(int(seed), mode)[1].simulation.digest for seed, mode in map(str.split, sys.argv[1:])])"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", code, *(f"{seed} {mode}" for seed, mode in TRACED)]
    other = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str([outcome(seed, mode)[1].simulation.digest for seed, mode in TRACED])


@pytest.mark.long
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.name in FOUND_BY], ids=lambda mutant: mutant.name)
def test_a_fault_in_the_laws_is_found(mutant: Mutant) -> None:
    with mutant.in_force():
        assert outcome(FOUND_BY[mutant.name], mutant.mode)[0]
    assert not outcome(FOUND_BY[mutant.name], mutant.mode)[0]
