"""Whether the record of a job in mode sync, without backup workers, shows nothing but moves of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.simulation.round_model import Coordinator

Record = dict[str, Any]


class Traced(NamedTuple):
    """base: the attempt of the job where that of `now` is 0; None: no record has shown it."""

    now: Coordinator
    base: int | None


def odd_record(records: Sequence[Record], workers: int) -> Record | None:
    """The first record that no order of moves gives; None: there is none.  workers: indices that the job may have."""
    possible: set[Traced] = set()
    attempt = 0  # that was recorded last
    for record in records:
        if record["record"] == "prepared":
            possible = {Traced(Coordinator(rounds=record["global_step"]), None)}
            attempt = 0  # where coordinator, ps and workers are new, attempts begin anew
        elif record["record"] in ("round", "void"):
            possible = {after for each in _reached(possible, workers) for after in _with(each, record, attempt)}
            if not possible:
                return record
            attempt = record["attempt"]
    return None


def _reached(possible: set[Traced], workers: int) -> set[Traced]:
    """With moves of which there is no record."""
    reached, new = set(possible), list(possible)
    while new:
        each = new.pop()
        for now in _silent(each.now, workers):
            after = each._replace(now=now)
            if after not in reached:
                reached.add(after)
                new.append(after)
    return reached


def _silent(now: Coordinator, workers: int) -> Iterator[Coordinator]:
    for worker in range(workers):
        if worker not in now.present:
            yield now._replace(present=now.present | {worker})
        elif worker not in now.members - now.pushed:
            yield now.loses(worker)
        if worker in now.members and now.previous is None:
            yield now.takes(worker, now.attempt)
    if now.present and (not now.is_open or (now.is_complete and now.previous is None)):
        yield now.opens()


def _with(each: Traced, record: Record, last_attempt: int) -> Iterator[Traced]:
    """Moves that give this record."""
    now = each.now
    if record["record"] == "round":
        of, members = now.previous or (now.attempt, now.members)
        number = now.rounds - (now.previous is not None and now.is_open)
        is_closed = now.previous is not None or now.is_complete
        recorded = frozenset(part["worker"] for part in record["parts"])
        based = _based(each, record["attempt"] - of, last_attempt < record["attempt"])
        has_parts = members == recorded and len(record["parts"]) == len(members)
        if is_closed and based and number == record["round"] and has_parts:
            closed = now._replace(previous=None)
            yield based._replace(now=closed if now.previous else closed._replace(members=frozenset()))
        return
    who = next(record[why] for why in ("lost", "starved", "cut_off") if why in record)
    based = _based(each, record["attempt"] - now.attempt, last_attempt <= record["attempt"])
    waits_for = who in now.members - now.pushed and record["voided"] == sorted(now.pushed)
    if based and waits_for and now.rounds == record["round"]:
        left = now if "cut_off" in record else now._replace(present=now.present - {who})
        yield based._replace(now=left.voids())


def _based(each: Traced, base: int, is_later: bool) -> Traced | None:
    """With this base, if it may be: the one of records before, or of none."""
    if each.base is None:
        return each._replace(base=base) if is_later and base >= 0 else None
    return each if each.base == base else None
