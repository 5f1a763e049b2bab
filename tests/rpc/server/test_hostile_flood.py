"""Calls that look right, as many as one peer can make: members keep their places, and memory is bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psruntime.core.plan.buckets import VariableSpec
from psruntime.rpc.wire.channel_options import CALLS_PER_CONNECTION
from tests.rpc.server.honest import JOB, PLACES, Honest
from tests.support.coordinator_process import coordinator_process
from tests.support.flood import flood
from tests.support.polling import poll_until

# The members' leases are shorter than the product's, and the flood is longer than one.
FLOODED = replace(JOB, max_workers=64)
FOR_S = 1.5 * FLOODED.lease_s
CONNECTIONS = 20
MODEL = tuple(VariableSpec(f"tower/layer_{i}/kernel", (128, 128), "float32") for i in range(10_000))
MB = 1_000_000

# What may become of the calls: those of strangers are refused, and who has too many under way is told so.
ENDS = {
    "heartbeat": {"FAILED_PRECONDITION"},
    "leave": {"OK"},  # of a stranger it changes nothing
    "turn": {"FAILED_PRECONDITION"},
    "status": {"OK"},
    "job": {"OK"},
    "model": {"OK"},
    "join": {"INVALID_ARGUMENT", "ALREADY_EXISTS", "OK"},  # OK: not yet
    "large_join": {"INVALID_ARGUMENT"},
}
BUSY = {"RESOURCE_EXHAUSTED", "UNAVAILABLE"}  # by the coordinator, or by gRPC: more than CALLS_PER_CONNECTION


@pytest.mark.long
def test_a_flood_costs_no_member_its_place(stage, tmp_path):
    with coordinator_process(tmp_path, FLOODED) as server:
        honest = Honest(stage, server, server.events, FLOODED, MODEL)
        before_bytes = server.memory_bytes
        ends = flood(server.port, ",".join(ENDS), CONNECTIONS, CALLS_PER_CONNECTION, FOR_S, honest.health)
        grown = server.most_memory_bytes - before_bytes
        print(f"{sum(ends.values()) / FOR_S:.0f} calls/s, {grown / MB:.0f} MB: {dict(ends)}")
        for end in ends:
            kind, status = end.split()
            assert status in ENDS[kind] | BUSY, ends
        assert {end.split()[0] for end in ends if end.split()[1] not in BUSY} == set(ENDS)
        assert grown < 400 * MB
        honest.check()


@pytest.mark.long
def test_joins_of_strangers_fill_the_job_and_no_more(stage, tmp_path):
    """Whoever has the token, where there is one, may take a place that is free: max_workers is the limit.

    Nobody gets one that is held by saying that it listens where the holder does.
    """
    with coordinator_process(tmp_path, FLOODED) as server:
        honest = Honest(stage, server, server.events, FLOODED, specs=())
        before_bytes = server.memory_bytes
        ends = flood(server.port, "free_join,claim", 4, CALLS_PER_CONNECTION, 2.0, honest.health)
        assert ends["free_join OK"] and ends["claim OK"], ends
        assert len(honest.client.get_status()[0].members) <= 1 + FLOODED.max_workers
        assert server.most_memory_bytes - before_bytes < 100 * MB
        honest.check_events()
        poll_until(lambda: len(honest.client.get_status()[0].members) == len(PLACES), 60, "their leases have ended")
        honest.check()
