"""Many members at once, without a thread for each."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psruntime.config import JobConfig
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer
from psruntime.core.members.view import Phase
from psruntime.rpc.server.servicer import CoordinationServicer
from psruntime.rpc.wire.codec import from_wire, to_wire
from psruntime.rpc.wire.messages import JoinResult
from psruntime.v1 import coordination_pb2 as pb
from psruntime.v1 import coordination_pb2_grpc as pb_grpc
from tests.rpc.conftest import JOB_ID, LONG, a_beat, a_join

WORKERS = 300


def test_health_answers_and_news_reaches_all_while_300_heartbeats_are_held(stage):
    job = JobConfig(job_id=JOB_ID, lease_s=LONG, ps_timeout_s=LONG, min_workers=WORKERS)
    address = f"127.0.0.1:{stage.coordinator(job).port}"

    async def member(index: int, held: asyncio.Semaphore) -> Phase:
        async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = pb_grpc.CoordinationServiceStub(channel)
            joined = await stub.Join(to_wire(a_join(Role.WORKER, index), pb.JoinRequest), timeout=60)
            answer = from_wire(JoinResult, joined).result
            while answer.instructions.phase is Phase.FORMING:
                held.release()
                wire = to_wire(a_beat(answer, Role.WORKER, index, wait_s=LONG), pb.HeartbeatRequest)
                answer = from_wire(Answer, (await stub.Heartbeat(wire, timeout=60)).answer)
            return answer.instructions.phase

    async def all_of_them() -> list[Phase]:
        held = asyncio.Semaphore(0)
        members = [asyncio.create_task(member(index, held)) for index in range(WORKERS)]
        for _ in members:
            await held.acquire()
        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=CoordinationServicer.name)
            answer = await health.Check(request, timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            assert not any(member.done() for member in members)
            await pb_grpc.CoordinationServiceStub(channel).Join(to_wire(a_join(Role.PS, 0), pb.JoinRequest), timeout=10)
        return await asyncio.gather(*members)

    assert asyncio.run(all_of_them()) == [Phase.PREPARING] * WORKERS
