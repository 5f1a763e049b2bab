"""The requests of `psruntime compare`: modes, and slow workers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from psruntime.config.schedule import BOUNDED, MODES, Schedule, named
from psruntime.config.settings import suggestion
from psruntime.config.values import AUTO, BoundRange
from psruntime.errors import UsageError

MOST_TIMES = 1000.0
_SLOW = re.compile(r"(\d{1,6}):(\d{1,6}(?:\.\d{1,6})?)x")


@dataclass(frozen=True)
class ModeRequest:
    """One training.

    name: as in the request.  schedule: its modes.  within: the range of its bounds, of mode bounded alone; then the
    schedule has the least of them.  more: further flags of the job, as words.
    """

    name: str
    schedule: Schedule
    within: BoundRange | None = None
    more: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, str | int]:
        """The job's settings of its mode."""
        first, *others = self.schedule.stages
        if others:
            return {"schedule": str(self.schedule)}
        if self.within:
            return {"mode": first.mode, "bound": str(self.within)}
        return {"mode": first.mode} if first.bound is None else {"mode": first.mode, "bound": first.bound}


def modes_of(text: str) -> list[ModeRequest]:
    """The modes of `async; bounded 4; bounded auto:1-8; async:500, sync`, the last a schedule, each with further flags
    of the job behind it if wanted: `async --pipeline 2`.

    Raises:
        UsageError: there is no mode, an unknown one, one twice, or a bound that is none.
    """
    requests = [_mode_of(" ".join(part.split())) for part in text.split(";") if part.strip()]
    if not requests:
        raise UsageError("--modes names no mode; for example --modes 'async; bounded 4; sync'")
    names = [request.name for request in requests]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--modes has '{name}' twice")
    return requests


def _mode_of(name: str) -> ModeRequest:
    words = name.split()
    flags = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    mode, more = " ".join(words[:flags]), tuple(words[flags:])
    within, is_range = None, mode.startswith(f"{BOUNDED} {AUTO}")
    if not is_range and not {",", ":"} & set(mode):
        _check_mode(mode, name)
    try:
        if is_range:
            within = BoundRange.of(mode.removeprefix(f"{BOUNDED} "))
            mode = named(BOUNDED, within.least)
        schedule = Schedule.of(mode)
    except UsageError as error:
        raise UsageError(f"--modes '{name}': {error}") from error
    assert schedule is not None, "its first word is a mode"
    return ModeRequest(name, schedule, within, more)


def _check_mode(mode: str, name: str) -> None:
    word, *words = mode.split() or [""]
    if word not in MODES:
        raise UsageError(
            f"--modes: '{word}' is no mode{suggestion(word, MODES) or '; there are async, bounded N and sync'}"
        )
    if word == BOUNDED and (not words or not words[0].isdecimal()):
        raise UsageError(f"--modes: bounded needs its bound, as bounded 4, got '{name}'")
    if len(words) > (word == BOUNDED):
        raise UsageError(f"--modes: '{words[-1]}' is unexpected in '{name}'; separate modes by ;")


def slow_of(text: str, workers: int) -> dict[int, float]:
    """Worker index -> the factor by which it is slowed, of `3:5x,2:1.5x`.

    Raises:
        UsageError: it is not of this form, names a worker that there is not, or one twice.
    """
    slow: dict[int, float] = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        found = _SLOW.fullmatch(part)
        if found is None or not 1 <= float(found[2]) <= MOST_TIMES:
            raise UsageError(
                f"--slow must be WORKER:TIMESx, from 1x to {MOST_TIMES:g}x, as 3:5x for a worker 3 that is five times "
                f"slower, got '{part}'"
            )
        worker = int(found[1])
        if worker >= workers:
            raise UsageError(f"--slow names worker {worker}; there are {workers}, from 0 to {workers - 1}")
        if worker in slow:
            raise UsageError(f"--slow names worker {worker} twice")
        slow[worker] = float(found[2])
    return slow
