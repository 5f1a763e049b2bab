"""A caller who does not stop: so many calls at a time, over so many connections, for so many seconds.

python -m tests.support.flood PORT KINDS CONNECTIONS CALLS SECONDS HEALTH: KINDS are names in `kinds`, separated by
commas; each of the CALLS of each connection makes one call after the other.  HEALTH is an address that the members
listen at.  Prints how the calls ended, by kind and status, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc

from psruntime.rpc.server.servicer import CoordinationServicer
from psruntime.rpc.wire.channel_options import MESSAGE_BYTES
from psruntime.v1 import coordination_pb2 as pb

ROOT = Path(__file__).parents[2]
END_S = 120.0  # for the last calls
LONGEST_S = 60.0  # for one
JOB_ID = "tests"  # whoever does not know it is refused before anything else
HELD = 3  # indices from 0 that members may hold
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
LARGE_HEARTBEAT_BYTES = 4 << 20
JUNK = b"x" * (MESSAGE_BYTES + 1)

Call = tuple[str, bytes]  # RPC and request


def a_heartbeat() -> pb.HeartbeatRequest:
    """Of a process that was never admitted."""
    ps = random.random() < 0.5
    beat = {"ps": pb.PsBeat()} if ps else {"worker": pb.WorkerBeat()}
    return pb.HeartbeatRequest(
        role="ROLE_PS" if ps else "ROLE_WORKER", index=random.randrange(HELD), incarnation=drawn(), **beat
    )


def a_leave() -> pb.LeaveRequest:
    return pb.LeaveRequest(
        role="ROLE_WORKER", index=random.randrange(HELD), incarnation=drawn(), kind="LEAVE_KIND_FATAL", reason="hm"
    )


def an_action() -> pb.NextActionRequest:
    closed = pb.Applied(round=1, attempt=1, global_step=9)
    return pb.NextActionRequest(worker_index=random.randrange(HELD), incarnation=drawn(), view=1, applied=closed)


def a_join(index: int, health: str = "127.0.0.1:9", variables: int = 0) -> pb.JoinRequest:
    specs = [pb.VariableSpec(name=f"layer_{i}/kernel/of/a/stranger", dtype="float32") for i in range(variables)]
    return pb.JoinRequest(
        role="ROLE_WORKER", index=index, address="127.0.0.1:8", health_address=health, job_id=JOB_ID,
        join_id=secrets.token_hex(8), variables=specs,
    )  # fmt: skip


def drawn() -> int:
    return 1 + secrets.randbelow(2**62)


def kinds(health: str) -> dict[str, Callable[[], Call]]:
    """By name; each makes another call every time."""
    large = a_join(7, variables=20_000).SerializeToString()
    return {
        "heartbeat": lambda: ("Heartbeat", a_heartbeat().SerializeToString()),
        "leave": lambda: ("Leave", a_leave().SerializeToString()),
        "turn": lambda: ("NextAction", an_action().SerializeToString()),
        "status": lambda: ("GetStatus", b""),
        "job": lambda: ("GetJob", b""),
        "model": lambda: ("GetModel", b""),
        "join": lambda: ("Join", a_join(random.choice((0, 1, 2, 2**20, 2**31 - 1))).SerializeToString()),
        "claim": lambda: ("Join", a_join(random.randrange(HELD), health).SerializeToString()),
        "free_join": lambda: ("Join", a_join(random.randrange(2**10)).SerializeToString()),
        "large_join": lambda: ("Join", large),
        "large_heartbeat": lambda: ("Heartbeat", JUNK[:LARGE_HEARTBEAT_BYTES]),
        "too_large": lambda: ("Join", JUNK),
    }


async def storm(
    port: int, makers: dict[str, Callable[[], Call]], names: list[str], connections: int, calls: int, seconds: float
) -> Counter[str]:
    ends: Counter[str] = Counter()
    until_s = time.monotonic() + seconds

    async def caller(channel: grpc.aio.Channel, kind: str) -> None:
        while time.monotonic() < until_s:
            rpc, request = makers[kind]()
            try:
                await channel.unary_unary(f"/{CoordinationServicer.name}/{rpc}")(request, timeout=LONGEST_S)
                ends[f"{kind} OK"] += 1
            except grpc.RpcError as error:
                ends[f"{kind} {error.code().name}"] += 1

    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", OPTIONS) for _ in range(connections)]
    callers = [caller(channel, names[i % len(names)]) for channel in channels for i in range(calls)]
    await asyncio.gather(*callers)
    for channel in channels:
        await channel.close()
    return ends


def flood(port: int, names: str, connections: int, calls: int, seconds: float, health: str = "") -> Counter[str]:
    """Runs it to its end, in a process of its own."""
    arguments = [str(value) for value in (port, names, connections, calls, seconds, health)]
    command = [sys.executable, "-m", "tests.support.flood", *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + END_S)
    assert run.returncode == 0, run.stderr
    return Counter(json.loads(run.stdout))


def main(port: str, names: str, connections: str, calls: str, seconds: str, health: str) -> None:
    makers = kinds(health)
    ends = asyncio.run(storm(int(port), makers, names.split(","), int(connections), int(calls), float(seconds)))
    print(json.dumps(ends))


if __name__ == "__main__":
    main(*sys.argv[1:])
