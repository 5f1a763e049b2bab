"""Everything that a GPU shows, in under eight minutes: exactness, errors, memory, and speed beside plain TensorFlow.

    python -m benchmarks.gpu [--seconds 3] [--within 460] [--only PART,...] [--save FILE]

Several processes start at a time; each trial then trains alone.  What there is no time for is listed as not run.  The
code is 1 if a check is wrong or a trial was not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu import links
from benchmarks.gpu.checks import Check, checked
from benchmarks.gpu.trials import GROUPS, Result, cores, measured_group, table
from psruntime.process.machine import gib_text, gpus

GROUP_S = 70.0  # that a group takes, about; it is not begun with less


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="for which each trial is measured (3)")
    parser.add_argument("--within", type=float, default=460.0, help="seconds after which nothing more is begun (460)")
    parser.add_argument("--only", default="", help="checks, links, or numbers of groups, with commas between them")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write the results as JSON")
    arguments = parser.parse_args()
    found = gpus()
    if not found:
        sys.stderr.write("benchmarks.gpu: no GPU is found, by NVML and nvidia-ml-py; nothing was run\n")
        return 2
    until_s = time.monotonic() + arguments.within
    wanted = arguments.only.split(",") if arguments.only else ["checks", "links", *map(str, range(len(GROUPS)))]
    print(f"{found[0].name}, {gib_text(found[0].total_bytes)}; {cores()} cores", flush=True)
    checks: list[Check] = []
    results: list[Result] = []
    if "checks" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            for check in checked(Path(folder)):
                print(f"{'right' if check.is_right else 'WRONG'}: {check.what}: {check.found}", flush=True)
                checks.append(check)
    if "links" in wanted:
        print(links.measured(), flush=True)
    for number, group in enumerate(GROUPS):
        if str(number) not in wanted:
            continue
        if time.monotonic() + GROUP_S > until_s:
            results += [Result(trial, None, "not run: no time was left") for trial in group]
            continue
        for result in measured_group(group, arguments.seconds):
            print(f"{result.trial}: {result.measured or result.why}", flush=True)
            results.append(result)
    print(table(results), flush=True)
    if arguments.save:
        facts = {"gpu": found[0].name, "checks": checks, "trials": [result.facts() for result in results]}
        arguments.save.write_text(json.dumps(facts, indent=1) + "\n")
    is_right = all(check.is_right for check in checks) and all(result.measured for result in results)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
