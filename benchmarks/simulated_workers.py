"""Many workers that train nothing, and the ps that they need: what a coordinator sees of a job.

    python -m benchmarks.simulated_workers --core N --port P --workers N --bound STEPS --rate STEPS_PER_S --seconds S

Each worker has a connection of its own and behaves on it as a real one: it asks for the job's settings, joins, holds a
heartbeat nearly all the time, as chief reports the view prepared, and in mode bounded reports its clock when
psruntime.core.clocks.report_schedule says so.  Its steps take 1/RATE s, give or take a fifth.

Prints `joined` once all workers step, and WARM_UP_S later measures for S seconds; then one line of JSON: the answer
times in milliseconds by kind of call, what failed, the largest lead, and the steps.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import resource
import time
from collections import Counter, defaultdict
from typing import Any

import grpc

from benchmarks.coordinator_service import a_job
from psruntime.config import JobConfig
from psruntime.core.clocks.report_schedule import Reporting
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Join, NotYet, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.core.plan.buckets import VariableSpec
from psruntime.rpc.client.membership_client import a_hold_s
from psruntime.rpc.wire import clock_messages, heartbeat_messages, member_messages
from psruntime.rpc.wire.channel_options import CALLER_OPTIONS
from psruntime.rpc.wire.clock_messages import ClockReport
from psruntime.rpc.wire.heartbeat_messages import Heartbeat
from psruntime.v1 import coordination_pb2 as pb
from psruntime.v1 import coordination_pb2_grpc as pb_grpc

SPECS = tuple(VariableSpec(f"layer_{i}/kernel", (64, 64), "float32") for i in range(160))
DEADLINE_S = 30.0  # of a call, beside the time for which it is held
JOIN_S = 300.0  # until all workers step
WARM_UP_S = 4.0
CONNECTING = 20  # workers that join at a time; a real job's processes do not start in the same millisecond either


class Job:
    """What the members of one simulated job share."""

    def __init__(self, settings: JobConfig, port: int, rate: float) -> None:
        self.settings = settings
        self.address = f"127.0.0.1:{port}"
        self.step_s = 1 / rate
        self.joining = asyncio.Semaphore(CONNECTING)
        self.stepping = 0
        self.measuring = False
        self.times_s: defaultdict[str, list[float]] = defaultdict(list)
        self.failed: Counter[str] = Counter()
        self.steps = self.max_lead = 0


class Member:
    """A connection, a place and its heartbeats."""

    def __init__(self, job: Job, role: Role, index: int) -> None:
        self.job, self.role, self.index = job, role, index
        options = (*CALLER_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        channel = grpc.aio.insecure_channel(job.address, options)
        self.stub: Any = pb_grpc.CoordinationServiceStub(channel)  # type: ignore[no-untyped-call]
        self.answer: Answer | None = None

    async def call(self, kind: str, rpc: str, request: Any, held_s: float = 0.0) -> Any:
        """The response, or None: it failed.  What is noted of a call that was held to the end is by how much later."""
        began_s, counts = time.monotonic(), self.job.measuring
        try:
            response = await getattr(self.stub, rpc)(request, timeout=held_s + DEADLINE_S)
        except grpc.RpcError as error:
            self.job.failed[f"{kind} {error.code().name}"] += 1
            await asyncio.sleep(0.2)
            return None
        took_s = time.monotonic() - began_s
        if counts and took_s >= held_s:  # else there was news, so it was not held to the end
            self.job.times_s[kind].append(took_s - held_s)
        return response

    async def join(self) -> None:
        specs = SPECS if self.role is Role.WORKER else ()
        address = f"127.0.0.1:{10_000 + self.index}"
        join = Join(self.role, self.index, address, address, f"{self.role} {self.index}", "benchmark", 0.0, specs)
        async with self.job.joining:
            await self.call("settings", "GetJob", pb.GetJobRequest())
            while self.answer is None:
                response = await self.call("join", "Join", member_messages.join_to_wire(join))
                result = NotYet("", "") if response is None else member_messages.join_result_from_wire(response)
                self.answer = result if isinstance(result, Answer) else None

    async def beat(self, beat: PsBeat | WorkerBeat, hold_s: float) -> None:
        assert self.answer is not None
        who = (self.role, self.index, self.answer.incarnation)
        wire = heartbeat_messages.heartbeat_to_wire(Heartbeat(*who, beat, self.answer.revision, hold_s))
        response = await self.call("heartbeat", "Heartbeat", wire, hold_s)
        if response is not None:
            self.answer = member_messages.answer_from_wire(response.answer)


class Ps(Member):
    """Writes the fence at once."""

    async def run(self) -> None:
        await self.join()
        while self.answer is not None:
            standing = self.answer.standing
            view = standing.view.number if standing.phase is Phase.TRAINING else 0
            await self.beat(PsBeat(standing.fence_revision, view), a_hold_s(self.job.settings))


class Worker(Member):
    """Steps in the first view in which it is told to."""

    reports: Reporting | None = None
    steps = 0

    def __init__(self, job: Job, index: int) -> None:
        super().__init__(job, Role.WORKER, index)
        self.stirred = asyncio.Event()  # the reporter has to look again

    async def run(self) -> None:
        await self.join()
        beating = asyncio.create_task(self.keep())
        assert self.answer is not None
        while self.answer.standing.phase is not Phase.TRAINING or not self.answer.standing.fenced_in:
            await asyncio.sleep(0.05)
        await self.beat(WorkerBeat(), 0.0)  # as a real one before it opens its session
        assert self.job.settings.bound is not None
        self.reports = Reporting(self.job.settings.bound, self.answer.standing.clock, self.job.settings.heartbeat_s)
        self.reports.space(self.answer.standing.report_every_s)
        self.job.stepping += 1
        await asyncio.gather(beating, self.step(self.reports), self.report(self.reports))

    async def keep(self) -> None:
        """The heartbeats."""
        reporting = False
        while self.answer is not None:
            view = self.answer.standing.view.number if self.reports else 0
            if self.answer.standing.chief and self.answer.standing.phase is Phase.PREPARING and not reporting:
                reporting = True
                request = pb.ReportPreparedRequest(
                    worker_index=self.index, incarnation=self.answer.incarnation,
                    view_number=self.answer.standing.view.number, global_step=Prepared(0).global_step,
                )  # fmt: skip
                await self.call("prepared", "ReportPrepared", request)
            await self.beat(WorkerBeat(view, self.steps, self.steps), a_hold_s(self.job.settings))
            if self.reports and self.reports.space(self.answer.standing.report_every_s):
                self.stirred.set()

    async def step(self, reports: Reporting) -> None:
        """The steps."""
        while True:
            await asyncio.sleep(self.job.step_s * random.uniform(0.8, 1.2))
            while reports.is_shut:
                await asyncio.sleep(0.001)
            if self.job.measuring:
                self.job.steps += 1
                self.job.max_lead = max(self.job.max_lead, reports.clock - reports.floor)
            self.steps += 1
            if reports.at(self.steps):
                self.stirred.set()

    async def report(self, reports: Reporting) -> None:
        """The reports of the clock, one call at a time."""
        while True:
            assert self.answer is not None
            wait_s = reports.wait_s(time.monotonic())
            if wait_s is None or wait_s > 0:
                self.stirred.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.stirred.wait(), wait_s)
                continue
            report = reports.begin(time.monotonic())
            whose = (self.index, self.answer.incarnation, self.answer.standing.view.number)
            wire = ClockReport(*whose, report.steps, report.wanted_floor, report.hold_s)
            kind = "held report" if report.wanted_floor else "report"
            response = await self.call(kind, "ReportClock", clock_messages.clock_report_to_wire(wire), report.hold_s)
            reports.end(report, None if response is None else response.floor_steps)


async def run(job: Job, seconds: float) -> dict[str, Any]:
    """All members, until the time that is measured is over."""
    members: list[Ps | Worker] = [Ps(job, Role.PS, 0), *(Worker(job, i) for i in range(job.settings.max_workers))]
    tasks = [asyncio.create_task(member.run()) for member in members]
    until_s = time.monotonic() + JOIN_S
    while job.stepping < len(members) - 1:
        if time.monotonic() > until_s or any(task.done() for task in tasks):
            raise SystemExit(f"{job.stepping} of {len(members) - 1} workers step, failed calls: {dict(job.failed)}")
        await asyncio.sleep(0.1)
    await asyncio.sleep(WARM_UP_S)
    print("joined", flush=True)
    gc.collect()
    gc.freeze()  # collections of a thousand workers are long, and their answers would have to wait
    began_s, used_s = time.monotonic(), time.process_time()
    job.failed.clear()
    job.measuring = True
    await asyncio.sleep(seconds)
    job.measuring = False
    measured_s = time.monotonic() - began_s
    return {
        "seconds": measured_s,
        "load_cores": (time.process_time() - used_s) / measured_s,
        "steps": job.steps,
        "max_lead": job.max_lead,
        "failed": dict(job.failed),
        "answers_ms": {kind: [1000 * each for each in times] for kind, times in job.times_s.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "port", "workers", "bound"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="steps/s of each worker")
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.core})
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    async def all_of_it() -> dict[str, Any]:
        settings = a_job(arguments.workers, arguments.bound)
        return await run(Job(settings, arguments.port, arguments.rate), arguments.seconds)

    print("measured", json.dumps(asyncio.run(all_of_it())), flush=True)


if __name__ == "__main__":
    main()
