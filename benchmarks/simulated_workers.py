"""Many workers that train nothing, and the ps that they need: what a coordinator sees of a job.

    python -m benchmarks.simulated_workers --core N --port P --workers N --first N --count N --bound STEPS \
        --rate STEPS_PER_S --seconds S

These are COUNT of the job's workers, from index FIRST on; those of index 0 bring the ps with them.

Each worker has a connection of its own and behaves on it as a real one: it asks for the job's settings, joins, has a
heartbeat under way nearly all the time, as chief reports the view prepared, and in mode bounded reports its clock when
psruntime.core.clocks.clocks says so.  Its steps take 1/RATE s, give or take a fifth.

Prints `joined` once all workers step, and WARM_UP_S later measures for S seconds; then one line of JSON: the answer
times in milliseconds by kind of call, how late this process was itself, what failed, the largest lead, and the steps.
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
from psruntime.core.clocks.clocks import ClockAnswer, ReportSchedule
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Assignment, Join, NotYet, Prepared, PsBeat, WorkerBeat, WorkerStats
from psruntime.core.members.view import Phase
from psruntime.core.plan.buckets import VariableSpec
from psruntime.rpc.client.membership_client import a_poll_s
from psruntime.rpc.wire.channel_options import CALLER_OPTIONS
from psruntime.rpc.wire.codec import from_wire, to_wire
from psruntime.rpc.wire.messages import ChiefReport, Heartbeat, JoinResult, Model
from psruntime.v1 import coordination_pb2 as pb
from psruntime.v1 import coordination_pb2_grpc as pb_grpc

DEADLINE_S = 30.0  # of a call, beside the time for which it may wait
JOIN_S = 300.0  # until all workers step
WARM_UP_S = 4.0
NAP_S = 0.005  # after which this process looks how late it is
CONNECTING = 20  # workers that join at a time; a real job's processes do not start in the same millisecond either


class Job:
    """What the members of one simulated job share."""

    def __init__(self, settings: JobConfig, port: int, rate: float, variables: int) -> None:
        self.settings = settings
        model = Model(tuple(VariableSpec(f"layer_{i}/kernel", (64, 64), "float32") for i in range(variables)))
        self.variables = to_wire(model, pb.Model).variables  # made once: they are every worker's
        self.address = f"127.0.0.1:{port}"
        self.step_s = 1 / rate
        self.joining = asyncio.Semaphore(CONNECTING)
        self.stepping = 0
        self.measuring = False
        self.tells_stats = False  # in the heartbeats of workers
        self.times_s: defaultdict[str, list[float]] = defaultdict(list)
        self.failed: Counter[str] = Counter()
        self.steps = self.max_lead = 0
        self.late_s: list[float] = []

    async def watch(self) -> None:
        """How much later than asked for this process does what is due: that is part of every answer time."""
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(NAP_S)
            if self.measuring:
                self.late_s.append(time.monotonic() - began_s - NAP_S)


class SimulatedMember:
    """A connection, a membership and its heartbeats."""

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
        address = f"127.0.0.1:{10_000 + self.index}"
        join = Join(self.role, self.index, address, address, f"{self.role} {self.index}", "benchmark")
        request = to_wire(join, pb.JoinRequest)
        if self.role is Role.WORKER:
            request.variables.MergeFrom(self.job.variables)
        async with self.job.joining:
            await self.call("settings", "GetJob", pb.GetJobRequest())
            while self.answer is None:
                response = await self.call("join", "Join", request)
                result = NotYet("", "") if response is None else from_wire(JoinResult, response).result
                self.answer = result if isinstance(result, Answer) else None

    async def beat(self, beat: PsBeat | WorkerBeat, max_wait_s: float) -> None:
        assert self.answer is not None
        who = (self.role, self.index, self.answer.incarnation)
        wire = to_wire(Heartbeat(*who, beat, self.answer.revision, max_wait_s), pb.HeartbeatRequest)
        response = await self.call("heartbeat", "Heartbeat", wire, max_wait_s)
        if response is not None:
            self.answer = from_wire(Answer, response.answer)


class Ps(SimulatedMember):
    """Writes the fence at once."""

    async def run(self) -> None:
        await self.join()
        while self.answer is not None:
            instructions = self.answer.instructions
            view = instructions.view.number if instructions.phase is Phase.TRAINING else 0
            await self.beat(PsBeat(instructions.fence_revision, view), a_poll_s(self.job.settings, Role.WORKER, 1))


class Worker(SimulatedMember):
    """Steps in the first view in which it is told to."""

    reports: ReportSchedule | None = None
    steps = 0

    def __init__(self, job: Job, index: int) -> None:
        super().__init__(job, Role.WORKER, index)
        self.stirred = asyncio.Event()  # the reporter has to look again

    async def run(self) -> None:
        await self.join()
        beating = asyncio.create_task(self.keep())
        assert self.answer is not None
        while self.answer.instructions.phase is not Phase.TRAINING or not self.answer.instructions.admitted_by_ps:
            await asyncio.sleep(0.05)
        await self.beat(WorkerBeat(), 0.0)  # as a real one before it opens its session
        assert self.job.settings.bound is not None
        told = self.answer.instructions
        assignment = Assignment(told.view, self.answer.incarnation, prepare=False, clock=told.clock)
        self.reports = ReportSchedule(self.job.settings.bound, self.index, assignment, self.job.settings.heartbeat_s)
        self.reports.space(told.report_every_s)
        self.job.stepping += 1
        await asyncio.gather(beating, self.step(self.reports), self.report(self.reports))

    async def keep(self) -> None:
        """The heartbeats."""
        reporting = False
        while self.answer is not None:
            view = self.answer.instructions.view.number if self.reports else 0
            if self.answer.instructions.chief and self.answer.instructions.phase is Phase.PREPARING and not reporting:
                reporting = True
                number = self.answer.instructions.view.number
                report = ChiefReport(self.index, self.answer.incarnation, number, Prepared(0))
                request = to_wire(report, pb.ReportPreparedRequest)
                await self.call("prepared", "ReportPrepared", request)
            await self.beat(
                WorkerBeat(view, self.steps, self.steps, stats=self._stats()),
                a_poll_s(self.job.settings, Role.WORKER, 1),
            )
            if self.reports and self.reports.space(self.answer.instructions.report_every_s):
                self.stirred.set()

    def _stats(self) -> WorkerStats:
        """Some that are as large as those of a real one."""
        if not self.job.tells_stats:
            return WorkerStats()
        counts = (self.steps // 2, self.steps // 3, *(self.steps // 50 for _ in range(6)), *(0 for _ in range(5)))
        loss = 1 / (1 + self.steps / 1000) + random.uniform(0, 0.1)
        return WorkerStats(self.steps, 1, 4, 64 / self.job.step_s, loss, staleness_counts=counts)

    async def step(self, reports: ReportSchedule) -> None:
        """The steps."""
        while True:
            await asyncio.sleep(self.job.step_s * random.uniform(0.8, 1.2))
            while reports.is_shut:
                await asyncio.sleep(0.001)
            if self.job.measuring:
                self.job.steps += 1
                self.job.max_lead = max(self.job.max_lead, reports.clock - reports.floor)
            self.steps += 1
            if reports.completed(self.steps):
                self.stirred.set()

    async def report(self, reports: ReportSchedule) -> None:
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
            kind, wire = "held report" if report.wanted_floor else "report", to_wire(report, pb.ReportClockRequest)
            response = await self.call(kind, "ReportClock", wire, report.max_wait_s)
            reports.end(report, None if response is None else from_wire(ClockAnswer, response))


async def run(job: Job, indices: range, seconds: float) -> dict[str, Any]:
    """All members, until the time that is measured is over."""
    members: list[Ps | Worker] = [Worker(job, index) for index in indices]
    if 0 in indices:
        members.append(Ps(job, Role.PS, 0))
    tasks = [asyncio.create_task(member.run()) for member in members]
    tasks.append(asyncio.create_task(job.watch()))
    until_s = time.monotonic() + JOIN_S
    while job.stepping < len(indices):
        if time.monotonic() > until_s or any(task.done() for task in tasks):
            raise SystemExit(f"{job.stepping} of {len(indices)} workers step, failed calls: {dict(job.failed)}")
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
        "late_ms": [1000 * each for each in job.late_s],
        "answers_ms": {kind: [1000 * each for each in times] for kind, times in job.times_s.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "port", "workers", "first", "count", "bound", "variables"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="steps/s of each worker")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--stats", action="store_true", help="let the workers say what they measure, as real ones do")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.core})
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    async def all_of_it() -> dict[str, Any]:
        settings = a_job(arguments.workers, arguments.bound)
        indices = range(arguments.first, arguments.first + arguments.count)
        job = Job(settings, arguments.port, arguments.rate, arguments.variables)
        job.tells_stats = arguments.stats
        return await run(job, indices, arguments.seconds)

    async def print_it() -> None:
        print("measured", json.dumps(await all_of_it()), flush=True)
        os._exit(0)  # a cancellation that meets the end of a wait is lost before Python 3.12, and the loop waits for it

    asyncio.run(print_it())


if __name__ == "__main__":
    main()
