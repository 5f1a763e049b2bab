"""Shows the time of each phase of a step, from a file that --trace-steps wrote.

psruntime trace FILE [--json]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.text import Text

from psruntime.errors import EXIT_DONE
from psruntime.observe.meter import PHASES
from psruntime.observe.render import table, text_console
from psruntime.observe.traces import Trace, read_trace
from psruntime.process import flags
from psruntime.process.job_file import local_file
from psruntime.process.process import offline
from psruntime.study.trace_report import PS_KINDS, Report, report_of

PROG = "psruntime trace"


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the file; no job need run.  Returns the exit code."""
    parser = flags.Parser(
        PROG,
        "Shows the time of each phase of a step, from a trace of a job with --trace-steps.",
        usage=f"{PROG} FILE [flags]",
    )
    parser.add_argument(
        "file", type=local_file, metavar="FILE", help="the file in trace/, in the folder of the checkpoints"
    )
    parser.heading(flags.MOST_USED).add_argument(
        "--json", action="store_true", help="one JSON object on stdout, times in seconds"
    )
    arguments = parser.parse_args(argv)
    return offline(PROG, lambda: _show(arguments.file, arguments.json))


def _show(path: str, as_json: bool) -> int:
    trace = read_trace(path)
    report = report_of(trace.spans)
    if as_json:
        facts = {"steps": trace.steps, "modes": trace.modes, "off_by_s": trace.off_by_s, "left_out": trace.left_out}
        sys.stdout.write(json.dumps({**facts, **asdict(report)}) + "\n")
    else:
        text_console().print(_as_text(trace, report))
    return EXIT_DONE


def _as_text(trace: Trace, report: Report) -> RenderableType:
    agree_ms, modes = trace.off_by_s * 1e3, " and ".join(trace.modes)
    head = Text(f"global steps {trace.steps} in mode {modes}; the clocks agree within {agree_ms:.2f} ms")
    phases = [phase for phase in PHASES if any(phase in time.phases for time in report.workers)]
    workers = table("worker", "steps", "ms a step", *phases)
    for time in report.workers:
        shares = (f"{time.phases.get(phase, 0.0) * 1e3:.2f}" for phase in phases)
        workers.add_row(str(time.worker), str(time.steps), f"{time.step_s * 1e3:.2f}", *shares)
    ps = table("ps", *(f"{kind}, ms" for kind in PS_KINDS))
    for each in report.ps:
        ps.add_row(str(each.ps), *(f"{each.kinds[kind] * 1e3:.2f}" for kind in PS_KINDS))
    return Group(head, Text(), workers, Text(), ps, *_verdict(report))


def _verdict(report: Report) -> list[RenderableType]:
    late = report.waited_for
    if not late:
        return []
    most = max(report.workers, key=lambda time: time.waiting)
    longest = max(late.phases, key=lambda phase: late.phases[phase])
    spent = f"{late.phases[longest] * 1e3:.1f} of {late.step_s * 1e3:.1f} ms"
    text = (
        f"worker {most.worker} waits {most.waiting:.0%} of its step for others; worker {late.worker} waits least, "
        f"{late.waiting:.0%}, and spends {spent} on {longest}"
    )
    return [Text(), Text(text)]
