"""A soak: `python -m tests.chaos.soak --minutes N`, or `make soak MINUTES=N`.

A job in each mode, for a third of the time each; every 5 s a fault of tests/chaos/storm.py.  At the end its processes
cost no more than after a quarter of the time.  With --at-once the jobs run side by side, as long as each would alone.
Prints the ends, writes docs/soak.json, and ends with 1 if a job came out otherwise than tests/chaos/weather.py
promises; the logs of such a job are kept.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.chaos.facts import facts_of
from tests.chaos.outcomes import MODES
from tests.chaos.weather import Weather
from tests.support.cluster import ROOT, Zygote

REPORT = ROOT / "docs" / "soak.json"
EVERY_S = 5.0


def soak(
    mode: str, seed: int, lasts_s: float, zygote: Zygote, folder: Path, settings: dict[str, str]
) -> dict[str, Any]:
    """The facts of one job, for the report."""
    facts = facts_of(Weather(seed, mode, zygote, folder, None, lasts_s, settings).run(EVERY_S))
    facts["struck"] = struck(facts.pop("told"))
    return facts


def struck(told: list[str]) -> dict[str, int]:
    """How often each index suffered each kind: "kill ps 0" -> 7."""
    counts: dict[str, int] = {}
    for line in told:
        kind, *names = line.partition(" at ")[0].partition(" by ")[0].split()
        who = " ".join([kind, *(name.partition(".")[0].replace("-", " ") for name in names)])
        counts[who] = counts.get(who, 0) + 1
    return dict(sorted(counts.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="for all modes together")
    parser.add_argument("--seed", type=int, help="of all that is random; drawn by default")
    parser.add_argument("--modes", default=",".join(MODES), help="which, with commas")
    parser.add_argument(
        "--job", default="", help="settings of the jobs, NAME=VALUE with commas: pipeline=2,wire=float16"
    )
    parser.add_argument("--at-once", type=int, default=1, help="jobs that run side by side")
    parser.add_argument("--report", type=Path, default=REPORT, help="the file that is written")
    arguments = parser.parse_args()
    modes = arguments.modes.split(",")
    settings = dict(given.split("=") for given in arguments.job.split(",") if given)
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    folder = Path(tempfile.mkdtemp(prefix="psruntime-soak-"))
    print(f"seed {seed}, logs of what fails in {folder}", flush=True)
    report: dict[str, Any] = {
        "seed": seed,
        "minutes": arguments.minutes,
        "at_once": arguments.at_once,
        "fault_every_s": EVERY_S,
        "settings": settings,
    }
    zygote = Zygote()

    def outlast(mode: str) -> dict[str, Any]:
        (folder / mode).mkdir()
        try:
            facts = soak(
                mode, seed + modes.index(mode), 60 * arguments.minutes / len(modes), zygote, folder / mode, settings
            )
            shutil.rmtree(folder / mode)
        except Exception as error:  # noqa: BLE001 - the other modes shall run, too
            facts = {"mode": mode, "failed": f"{type(error).__name__}: {error}"[:500]}
            (folder / mode / "failure.txt").write_text(traceback.format_exc())
        print(json.dumps(facts), flush=True)
        return facts

    try:
        with ThreadPoolExecutor(arguments.at_once) as jobs:
            report["jobs"] = list(jobs.map(outlast, modes))
        report["orphans"] = len(zygote.running())
    finally:
        zygote.close()
    failed = [facts["mode"] for facts in report["jobs"] if "failed" in facts]
    arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    print(f"seed {seed}: {len(failed)} failed {failed or ''}, {report['orphans']} orphans; {arguments.report}")
    return 1 if failed or report["orphans"] else 0


if __name__ == "__main__":
    sys.exit(main())
