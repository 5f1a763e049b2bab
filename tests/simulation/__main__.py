"""Plays schedules: see the package."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

from psruntime.config.schedule import ASYNC, BOUNDED, SYNC
from tests.simulation.cluster import outcome, outcome_of, smaller
from tests.simulation.mutants import MUTANTS
from tests.simulation.schedules import Schedule, schedule_of


def described(schedule: Schedule) -> str:
    job = (
        f"{schedule.mode}, {schedule.num_ps} ps, {schedule.workers} workers of at least {schedule.min_workers}, "
        f"{schedule.rounds} global steps, pipeline {schedule.pipeline}, bound {schedule.bound}"
    )
    faults = "".join(f"\n    {fault}" for fault in schedule.faults)
    faults += "".join(f"\n    in a preparation: {fault}" for fault in schedule.in_preparations)
    return f"seed {schedule.seed}: {job}, {schedule.backup_workers} backup workers{faults}"


def play_one(schedule: Schedule) -> int:
    found, cluster = outcome_of(schedule)
    print("\n".join(cluster.simulation.lines))
    print(described(schedule))
    applied = f"{cluster.audit.rounds} rounds or updates"
    print(f"trace {cluster.simulation.digest}, {cluster.simulation.events} events, {applied}")
    print("\n".join(found) or "nothing went wrong")
    return len(found) > 0


def play_range(seeds: Iterable[int], mode: str) -> int:
    began_s, wrong, events, number = time.monotonic(), 0, 0, 0
    for seed in seeds:
        found, cluster = outcome(seed, mode)
        number += 1
        events += cluster.simulation.events
        if found:
            wrong += 1
            print(f"{described(schedule_of(seed, mode))}\n  {found[0]}")
    seconds = time.monotonic() - began_s
    print(f"{number} schedules, {events} events in {seconds:.0f} s: {wrong} went wrong")
    return wrong > 0


def find_mutants(seeds: range) -> int:
    missed = 0
    for mutant in MUTANTS:
        with mutant.in_force():
            found = next(((seed, wrong[0]) for seed in seeds if (wrong := outcome(seed, mutant.mode)[0])), None)
        missed += found is None
        print(f"{mutant.name}: {f'seed {found[0]}: {found[1]}' if found else 'not found'}", flush=True)
    return missed > 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:1000", metavar="FROM:TO")
    parser.add_argument("--mode", default=SYNC, choices=(ASYNC, BOUNDED, SYNC))
    parser.add_argument("--smaller", action="store_true")
    parser.add_argument("--mutants", action="store_true")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        schedule = schedule_of(arguments.seed, arguments.mode)
        return play_one(smaller(schedule) if arguments.smaller else schedule)
    seeds = range(*map(int, arguments.seeds.split(":")))
    return find_mutants(seeds) if arguments.mutants else play_range(seeds, arguments.mode)


if __name__ == "__main__":
    sys.exit(main())
