"""All of the chaos, from one seed: `python -m tests.chaos --seed N`, or `make chaos SEED=N`.

Prints a line for each job, writes docs/chaos.json, and ends with 1 if anything came out otherwise than promised; the
logs of such a job are kept.  The seed is drawn if it is not given, and printed: it makes the same schedules again.
With --parts the rest of a report of the same seed stays as it is, with --only the other cells and hardships, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.chaos.bits import BitsJob
from tests.chaos.cells import Cell
from tests.chaos.exact import KillSchedule
from tests.chaos.facts import facts_of
from tests.chaos.hardships import KINDS, Hardship, read_promises
from tests.chaos.joins import join_and_kill
from tests.chaos.outcomes import MODES, read_table
from tests.chaos.switches import Stages, Switches
from tests.chaos.torture import Torture
from tests.chaos.weather import Weather
from tests.support.cluster import ROOT, Zygote

PARTS = ("cells", "hardships", "schedules", "rounds", "exact", "torture", "joins", "switches", "stages", "bits")
REPORT = ROOT / "docs" / "chaos.json"
SCHEDULES, FAULTS = 6, 6  # random schedules, and the faults of each
ROUNDS, ROUNDS_FAULTS = 200, 3  # the same in mode sync, with their replays
EXACT, KILLS = 50, 3
SAVES = 50
SWITCHES, CHANGES = 20, 3  # schedules of changes of mode, and the changes of each
CYCLES = 200
BITS = 200  # jobs whose replays have the same bits, every second one colocated
GROWTH_BYTES = 100 << 20  # of all ps together, for so many cycles


class Chaos:
    """Runs jobs one after the other, each in a folder of its own; what fails is told, and the rest goes on."""

    def __init__(self, seed: int, folder: Path, at_once: int, only: str, schedules: int) -> None:
        self.failed: list[str] = []
        self.zygote = Zygote()
        self._seed = seed
        self._folder = folder
        self._at_once = at_once
        self._only = only
        self._schedules = schedules

    def run(self, name: str, job: Callable[[Path], Any]) -> dict[str, Any]:
        """Its facts; {"failed": why} and what is known beside it if it came out otherwise than promised."""
        folder = self._folder / re.sub(r"\W+", "-", name)
        folder.mkdir(parents=True)
        began_s = time.monotonic()
        try:
            facts = facts_of(job(folder))
            left = [] if self._at_once > 1 else self.zygote.running()  # others run beside it
            assert not left, f"orphans: {left}"
        except Exception as error:  # noqa: BLE001 - the others shall run, too
            self.failed.append(name)
            (folder / "failure.txt").write_text(traceback.format_exc())
            facts = {"failed": f"{type(error).__name__}: {error}"[:500], "logs": str(folder)}
        else:
            shutil.rmtree(folder)
        facts.setdefault("seconds", round(time.monotonic() - began_s, 1))
        print(f"{'FAILED' if 'failed' in facts else 'ok':6} {name}  {brief(facts)}", flush=True)
        return facts

    def cells(self) -> list[dict[str, Any]]:
        rows = []
        for outcome in read_table().values():
            if self._only not in outcome.cell:
                continue
            facts = self.run(outcome.cell, lambda folder, o=outcome: Cell(o, self.zygote, folder).run())
            promised = {"end": outcome.end, "steps": outcome.steps, "exit": outcome.exit}
            rows.append({"cell": outcome.cell, "promised": promised, **facts})
        return rows

    def hardships(self) -> list[dict[str, Any]]:
        rows = []
        for name, promise in read_promises().items():
            if self._only not in name:
                continue
            if reason := KINDS[promise.hardship].needs():
                print(f"not here: {name}: {reason}", flush=True)
                rows.append({"cell": name, "not_played": reason})
                continue
            facts = self.run(name, lambda folder, p=promise: Hardship(p, self.zygote, folder).run())
            rows.append({"cell": name, **facts})
        return rows

    def schedules(self) -> list[dict[str, Any]]:
        def play(number: int) -> dict[str, Any]:
            def job(folder: Path) -> Any:
                return Weather(self._seed + number, MODES[number % 3], self.zygote, folder, FAULTS, None).run()

            return self.run(f"schedule {number}", job)

        with ThreadPoolExecutor(self._at_once) as players:
            return list(players.map(play, range(self._schedules)))

    def rounds(self) -> dict[str, Any]:
        def play(number: int) -> dict[str, Any]:
            def job(folder: Path) -> Any:
                return Weather(self._seed + number, "sync", self.zygote, folder, ROUNDS_FAULTS, None).run()

            return self.run(f"rounds {number}", job)

        with ThreadPoolExecutor(self._at_once) as players:
            rows = list(players.map(play, range(ROUNDS)))
        told = Counter(line.split()[0] for row in rows for line in row.get("told", ()))
        largest = max((row["largest"] for row in rows if "largest" in row), default=None)
        brief_rows = [
            {name: row[name] for name in ("seed", "largest", "failed", "logs") if name in row} for row in rows
        ]
        return {"schedules": ROUNDS, "faults": told, "largest_difference": largest, "each": brief_rows}

    def exact(self) -> dict[str, Any]:
        rows = [
            self.run(f"exact {n}", lambda folder, n=n: KillSchedule(self._seed + n, KILLS, self.zygote, folder).run())
            for n in range(EXACT)
        ]
        kills: Counter[str] = sum((Counter(row.get("kills", {})) for row in rows), Counter())
        print(f"kills by stage: {dict(kills)}", flush=True)
        largest = max((row["largest"] for row in rows if "largest" in row), default=None)
        return {"schedules": EXACT, "kills": kills, "largest_difference": largest, "each": rows}

    def bits(self) -> list[dict[str, Any]]:
        def play(number: int) -> dict[str, Any]:
            def job(folder: Path) -> Any:
                return BitsJob(self._seed + number, number % 2 == 1, self.zygote, folder).run()

            return self.run(f"bits {number}", job)

        with ThreadPoolExecutor(self._at_once) as players:
            return list(players.map(play, range(BITS)))

    def torture(self) -> dict[str, Any]:
        return self.run("torture", lambda folder: Torture(self._seed, SAVES, self.zygote, folder).run())

    def switches(self) -> list[dict[str, Any]]:
        return self._switched("switches", Switches)

    def stages(self) -> list[dict[str, Any]]:
        return self._switched("stages", Stages)

    def _switched(self, part: str, kind: type[Switches]) -> list[dict[str, Any]]:
        def play(number: int) -> dict[str, Any]:
            def job(folder: Path) -> Any:
                return kind(self._seed + number, CHANGES, self.zygote, folder).run()

            return self.run(f"{part} {number}", job)

        with ThreadPoolExecutor(self._at_once) as players:
            return list(players.map(play, range(SWITCHES)))

    def joins(self) -> list[dict[str, Any]]:
        def play(folder: Path, cycles: int, new: bool) -> Any:
            joined = join_and_kill(cycles, new, self.zygote, folder, lambda text: print(text, flush=True))
            limit = GROWTH_BYTES * cycles // CYCLES
            assert joined.grown_bytes < limit, f"the ps have grown by {joined.grown_bytes} bytes: {joined}"
            return joined

        kinds = {"joins of new indices": (CYCLES, True), "joins of one index": (CYCLES // 4, False)}
        return [self.run(name, lambda folder, kind=kind: play(folder, *kind)) for name, kind in kinds.items()]


def begun(path: Path, seed: int) -> dict[str, Any]:
    """The report of the same seed on as many cores, of which parts are to be run again; else a new one."""
    new = {"seed": seed, "cores": os.cpu_count(), "seconds": {}}
    known = json.loads(path.read_text()) if path.exists() else {}
    return known if all(known.get(name) == new[name] for name in ("seed", "cores")) else new


def with_the_others(before: Any, rows: Any) -> Any:
    """The rows of the cells that were played, and before and after them those that were not."""
    if not isinstance(before, list) or not all("cell" in row for row in [*before, *rows]):
        return rows
    played = {row["cell"]: row for row in rows}
    return [played.pop(row["cell"], row) for row in before] + list(played.values())


def brief(facts: dict[str, Any]) -> str:
    """For one line."""
    shown = {name: value for name, value in facts.items() if isinstance(value, str | int | float | dict)}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value not in ("", {}))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="of all that is random; drawn by default")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, with commas")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells and hardships with this text in their names")
    parser.add_argument(
        "--at-once",
        type=int,
        default=1,
        help="jobs of parts schedules, rounds, switches, stages and bits that are played side by side",
    )
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help="of part schedules, in turn of each mode")
    parser.add_argument("--report", type=Path, default=REPORT, help="the file that is written")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if set(parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(set(parts) - set(PARTS)))} is not one of {', '.join(PARTS)}")
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    folder = Path(tempfile.mkdtemp(prefix="psruntime-chaos-"))
    print(f"seed {seed}, logs of what fails in {folder}", flush=True)
    chaos = Chaos(seed, folder, arguments.at_once, arguments.only, arguments.schedules)
    report = begun(arguments.report, seed)
    try:
        for part in parts:
            began_s = time.monotonic()
            report[part] = with_the_others(report.get(part), getattr(chaos, part)())
            report["seconds"][part] = round(time.monotonic() - began_s)
    finally:
        chaos.zygote.close()
    arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    print(f"seed {seed}: {len(chaos.failed)} failed {chaos.failed or ''}; {arguments.report}")
    return 1 if chaos.failed else 0


if __name__ == "__main__":
    sys.exit(main())
