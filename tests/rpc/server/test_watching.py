"""The watch over a coordinator misses no input: one that it does not see moves time, and members, past the model."""

from __future__ import annotations

import inspect

import pytest

from psruntime.config import JobConfig
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.shards.shard_messages import Sharding, ShardRequest
from psruntime.core.steering.commands import Command, Kind
from psruntime.errors import PsRuntimeError, ReplacedError, UsageError
from tests.rpc.conftest import JOB_ID, a_join
from tests.rpc.server.watching import WatchedCoordinator

LEASE_S = 3.0
INPUTS = {
    name
    for name, method in vars(Coordinator).items()
    if not name.startswith("_") and inspect.isfunction(method) and "now_s" in inspect.signature(method).parameters
}
QUIET = {  # inputs that say nothing of any member
    "take_shard": lambda core, now_s: core.take_shard(ShardRequest(5, 99, Sharding(8, 4)), now_s),
    "control": lambda core, now_s: core.control(Command(Kind.BOUND, "x", bound=1), now_s),
    "next_action": lambda core, now_s: core.next_action(5, 99, 1, None, now_s),
    "starts": lambda core, now_s: core.starts(5, now_s),
    "advance": lambda core, now_s: core.advance(now_s),
}


def test_every_input_is_watched() -> None:
    assert vars(WatchedCoordinator).keys() >= INPUTS > QUIET.keys()


@pytest.mark.parametrize("name", QUIET)
def test_a_lease_ends_for_the_model_too_whatever_comes_then(name: str) -> None:
    watched = WatchedCoordinator(JobConfig(job_id=JOB_ID, ps=1, min_workers=2, lease_s=LEASE_S))
    numbers = {index: watched.join(a_join(Role.WORKER, index), 10 + index, 0.0).incarnation for index in range(2)}
    for now_s in (1.0, 2.0, 3.0, 4.0):
        for index, incarnation in numbers.items():
            try:
                QUIET[name](watched, now_s)
            except PsRuntimeError as error:
                assert isinstance(error, ReplacedError | UsageError)
            watched.take_effects()
            try:
                watched.answer(Role.WORKER, index, incarnation)
            except ReplacedError:
                assert now_s >= LEASE_S
    assert not watched.state.members.count(Role.WORKER)
