"""Turns on the wire: round trips, and what is refused, by the name of the field."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.core.rounds.round_messages import Closed, Complete, Computed, Contribution, Duty, Taken, Torn, Turn
from psruntime.errors import UsageError
from psruntime.rpc.wire import field_checks
from psruntime.rpc.wire.turn_messages import (
    TurnRequest,
    turn_from_wire,
    turn_request_from_wire,
    turn_request_to_wire,
    turn_to_wire,
)
from psruntime.v1 import coordination_pb2 as pb
from tests.rpc.wire.test_messages import counts, incarnations, indices, spans, texts, words
from tests.rpc.wire.test_shard_messages import shard_batches
from tests.support.messages import messages
from tests.support.selection import examples

relaxed = settings(deadline=None)
numbers = st.integers(1, field_checks.COUNT_LIMIT - 1)
amounts = st.floats(0, 1e300)
takens = st.none() | st.builds(Taken, counts, numbers, numbers, amounts)
positions = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
dones = (
    st.none()
    | st.builds(
        Contribution, numbers, numbers, counts, amounts, st.booleans(), takens, shard_batches, numbers, positions
    )
    | st.builds(Computed, numbers, numbers, counts, amounts)
    | st.builds(Closed, numbers, numbers, counts)
    | st.builds(Torn, numbers, numbers, words)
)
requests = st.builds(TurnRequest, indices, incarnations, numbers, dones, spans, st.none() | counts)
completes = st.none() | st.builds(Complete, numbers, numbers, numbers, amounts)
turns = st.builds(Turn, st.sampled_from(Duty), counts, counts, counts, completes, texts, counts).filter(
    lambda turn: turn.closes or turn.duty is not Duty.CLOSE
)


@relaxed
@given(requests)
def test_a_request_comes_back(request):
    assert turn_request_from_wire(turn_request_to_wire(request)) == request


@relaxed
@given(turns)
def test_a_turn_comes_back(turn):
    assert turn_from_wire(turn_to_wire(turn)) == turn


def test_every_duty_is_on_the_wire_and_no_other():
    assert sorted(pb.Duty.keys()) == sorted(f"DUTY_{word}" for word in ["UNSPECIFIED", *Duty.__members__])


def test_what_is_sent_is_cut_to_its_limit():
    long = "bad \udcff" + "x" * 10_000
    assert len(turn_request_to_wire(TurnRequest(0, 1, 1, Torn(1, 1, long))).torn.reason) == field_checks.TEXT_CHARS
    assert turn_to_wire(Turn(Duty.WAIT, reason=long)).reason.startswith("bad ?xx")


def _request(**changes):
    wire = turn_request_to_wire(TurnRequest(1, 7, 2))
    wire.MergeFrom(pb.TakeTurnRequest(**changes))
    return turn_request_from_wire, wire


def _part(**changes):
    return {"round": 1, "attempt": 1, "taken": {"first": 0, "size": 8, "batch_size": 8, "seconds": 0.5, **changes}}


def _turn(**changes):
    wire = turn_to_wire(Turn(Duty.WAIT))
    wire.MergeFrom(pb.Turn(**changes))
    return turn_from_wire, wire


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ((turn_request_from_wire, pb.TakeTurnRequest(incarnation=1)), "view_number must be from 1"),
        (_request(worker_index=-1), "worker_index must be from 0"),
        (_request(incarnation=-7), "incarnation must be from 1"),
        (_request(max_wait={"seconds": -1}), "max_wait must be from 0"),
        (_request(contribution=pb.Contribution()), "contribution.round must be from 1"),
        (_request(contribution=pb.Contribution(round=1)), "contribution.attempt must be from 1"),
        (_request(contribution={"round": 1, "attempt": 1, "batch": -1}), "contribution.batch must be from 0"),
        (
            _request(contribution={"round": 1, "attempt": 1, "examples": -1}),
            "contribution.examples must be a finite number from 0",
        ),
        (
            _request(contribution={"round": 1, "attempt": 1, "examples": math.nan}),
            "contribution.examples must be a finite number from 0",
        ),
        (_request(contribution=_part(first=-1)), "taken.first must be from 0"),
        (_request(contribution=_part(size=0)), "taken.size must be from 1"),
        (_request(contribution=_part(batch_size=-3)), "taken.batch_size must be from 1"),
        (_request(contribution=_part(seconds=math.nan)), "taken.seconds must be a finite number from 0"),
        (_request(computed=pb.Computed(round=1)), "computed.opened must be from 1"),
        (_request(computed={"round": 1, "opened": 1, "batch": -1}), "computed.batch must be from 0"),
        (
            _request(computed={"round": 1, "opened": 1, "examples": math.inf}),
            "computed.examples must be a finite number from 0",
        ),
        (_request(closed=pb.Closed(round=1)), "closed.attempt must be from 1"),
        (_request(closed={"round": 1, "attempt": 1, "global_step": -1}), "closed.global_step must be from 0"),
        (_request(torn=pb.Torn()), "torn.round must be from 1"),
        (_request(torn={"round": 1, "attempt": 1, "reason": "x" * 5000}), "torn.reason must have 0 to 4096"),
        ((turn_from_wire, pb.Turn()), "turn.duty must be one of DUTY_WAIT"),
        (_turn(duty=9), "turn.duty must be one of DUTY_WAIT"),
        (_turn(round=-1), "turn.round must be from 0"),
        (_turn(opened=-1), "turn.opened must be from 0"),
        (_turn(share=-1), "turn.share must be from 0"),
        (_turn(duty=pb.DUTY_CLOSE), "turn.closes is missing"),
        (_turn(closes=pb.Complete()), "closes.round must be from 1"),
        (_turn(closes={"round": 1, "attempt": 1}), "closes.members must be from 1"),
        (
            _turn(closes={"round": 1, "attempt": 1, "members": 1, "examples": math.inf}),
            "closes.examples must be a finite number",
        ),
    ],
)
def test_what_is_malformed_is_refused_by_name(call, line):
    from_wire, wire = call
    with pytest.raises(UsageError) as refused:
        from_wire(wire)
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize(
    ("kind", "from_wire", "wanted"),
    [(pb.TakeTurnRequest, turn_request_from_wire, TurnRequest), (pb.Turn, turn_from_wire, Turn)],
)
def test_random_values_give_a_dataclass_or_a_usage_error(kind, from_wire, wanted):
    outcomes = set()

    @settings(relaxed, max_examples=examples(60))
    @given(messages(kind))
    def check(wire):
        try:
            assert isinstance(from_wire(wire), wanted)
            outcomes.add("valid")
        except UsageError as error:
            assert str(error)
            outcomes.add("refused")

    check()
    assert "refused" in outcomes


def test_without_shares_nothing_of_them_is_sent():
    request, turn = TurnRequest(0, 1, 1, Contribution(1, 1, 0, 64.0)), Turn(Duty.CONTRIBUTE, 2, 2, 2)
    assert not turn_request_to_wire(request).contribution.HasField("taken")
    assert {field.name for field, _ in turn_to_wire(turn).ListFields()} == {"duty", "round", "attempt", "opened"}
