"""Actions and reports on the wire: round trips, and what is refused, by the name of the field."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.core import fields
from psruntime.core.rounds.round_messages import (
    Action,
    ActionKind,
    Applied,
    Broken,
    Complete,
    Computed,
    CutOff,
    Pushed,
    Taken,
)
from psruntime.errors import UsageError
from psruntime.rpc.wire.codec import from_wire, to_wire
from psruntime.rpc.wire.messages import ActionRequest
from psruntime.v1 import coordination_pb2 as pb
from tests.rpc.wire.test_messages import counts, incarnations, indices, spans, words
from tests.rpc.wire.test_shard_messages import shard_batches
from tests.support.messages import messages
from tests.support.selection import examples

relaxed = settings(deadline=None)
numbers = st.integers(1, fields.COUNT_LIMIT - 1)
amounts = st.floats(0, 1e300)
takens = st.none() | st.builds(Taken, counts, numbers, numbers, amounts)
positions = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
dones = (
    st.none()
    | st.builds(Pushed, numbers, numbers, counts, amounts, st.booleans(), takens, shard_batches, numbers, positions)
    | st.builds(Computed, numbers, numbers, counts, amounts)
    | st.builds(Applied, numbers, numbers, counts)
    | st.builds(Broken, numbers, numbers, words)
    | st.builds(CutOff, numbers, numbers)
)
requests = st.builds(ActionRequest, indices, incarnations, numbers, dones, spans, st.none() | counts)
completes = st.none() | st.builds(Complete, numbers, numbers, numbers, amounts)
turns = st.builds(Action, st.sampled_from(ActionKind), counts, counts, counts, completes, words, counts).filter(
    lambda action: action.closes or action.kind is not ActionKind.APPLY
)


@relaxed
@given(requests)
def test_a_request_comes_back(request):
    assert from_wire(ActionRequest, to_wire(request, pb.NextActionRequest)) == request


@relaxed
@given(turns)
def test_a_turn_comes_back(action):
    assert from_wire(Action, to_wire(action, pb.Action)) == action


def test_every_duty_is_on_the_wire_and_no_other():
    assert sorted(pb.ActionKind.keys()) == sorted(
        f"ACTION_KIND_{word}" for word in ["UNSPECIFIED", *ActionKind.__members__]
    )


def test_what_is_sent_is_cut_to_its_limit():
    long = "bad \udcff" + "x" * 10_000
    assert (
        len(to_wire(ActionRequest(0, 1, 1, Broken(1, 1, long)), pb.NextActionRequest).broken.reason)
        == fields.TEXT_CHARS
    )
    assert to_wire(Action(ActionKind.WAIT, reason=long), pb.Action).reason.startswith("bad ?xx")


def _request(**changes):
    wire = to_wire(ActionRequest(1, 7, 2), pb.NextActionRequest)
    wire.MergeFrom(pb.NextActionRequest(**changes))
    return ActionRequest, wire


def _part(**changes):
    return {"round": 1, "attempt": 1, "taken": {"first": 0, "size": 8, "batch_size": 8, "seconds": 0.5, **changes}}


def _turn(**changes):
    wire = to_wire(Action(ActionKind.WAIT), pb.Action)
    wire.MergeFrom(pb.Action(**changes))
    return Action, wire


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ((ActionRequest, pb.NextActionRequest(incarnation=1)), "view must be from 1"),
        (_request(worker_index=-1), "worker_index must be from 0"),
        (_request(incarnation=-7), "incarnation must be from 1"),
        (_request(max_wait={"seconds": -1}), "max_wait must be from 0"),
        (_request(pushed=pb.Pushed()), "pushed.round must be from 1"),
        (_request(pushed=pb.Pushed(round=1)), "pushed.attempt must be from 1"),
        (_request(pushed={"round": 1, "attempt": 1, "batch": -1}), "pushed.batch must be from 0"),
        (
            _request(pushed={"round": 1, "attempt": 1, "examples": -1}),
            "pushed.examples must be a finite number from 0",
        ),
        (
            _request(pushed={"round": 1, "attempt": 1, "examples": math.nan}),
            "pushed.examples must be a finite number from 0",
        ),
        (_request(pushed=_part(first=-1)), "pushed.taken.first must be from 0"),
        (_request(pushed=_part(size=0)), "pushed.taken.size must be from 1"),
        (_request(pushed=_part(batch_size=-3)), "pushed.taken.batch_size must be from 1"),
        (_request(pushed=_part(seconds=math.nan)), "pushed.taken.seconds must be a finite number from 0"),
        (_request(computed=pb.Computed(round=1)), "computed.opened must be from 1"),
        (_request(computed={"round": 1, "opened": 1, "batch": -1}), "computed.batch must be from 0"),
        (
            _request(computed={"round": 1, "opened": 1, "examples": math.inf}),
            "computed.examples must be a finite number from 0",
        ),
        (_request(applied=pb.Applied(round=1)), "applied.attempt must be from 1"),
        (_request(applied={"round": 1, "attempt": 1, "global_step": -1}), "applied.global_step must be from 0"),
        (_request(cut_off=pb.CutOff(round=1)), "cut_off.attempt must be from 1"),
        (_request(broken=pb.Broken()), "broken.round must be from 1"),
        (_request(broken={"round": 1, "attempt": 1, "reason": "x" * 5000}), "broken.reason must have 0 to 4096"),
        ((Action, pb.Action()), "kind must be one of ACTION_KIND_WAIT"),
        (_turn(kind=9), "kind must be one of ACTION_KIND_WAIT"),
        (_turn(round=-1), "round must be from 0"),
        (_turn(opened=-1), "opened must be from 0"),
        (_turn(share=-1), "share must be from 0"),
        (_turn(kind=pb.ACTION_KIND_APPLY), "closes is missing"),
        (_turn(closes=pb.Complete()), "closes.round must be from 1"),
        (_turn(closes={"round": 1, "attempt": 1}), "closes.members must be from 1"),
        (
            _turn(closes={"round": 1, "attempt": 1, "members": 1, "examples": math.inf}),
            "closes.examples must be a finite number",
        ),
    ],
)
def test_what_is_malformed_is_refused_by_name(call, line):
    kind, wire = call
    with pytest.raises(UsageError) as refused:
        from_wire(kind, wire)
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [(pb.NextActionRequest, ActionRequest), (pb.Action, Action)],
)
def test_random_values_give_a_dataclass_or_a_usage_error(kind, wanted):
    outcomes = set()

    @settings(relaxed, max_examples=examples(60))
    @given(messages(kind))
    def check(wire):
        try:
            assert isinstance(from_wire(wanted, wire), wanted)
            outcomes.add("valid")
        except UsageError as error:
            assert str(error)
            outcomes.add("refused")

    check()
    assert "refused" in outcomes


def test_without_shares_nothing_of_them_is_sent():
    request, action = ActionRequest(0, 1, 1, Pushed(1, 1, 0, 64.0)), Action(ActionKind.PUSH, 2, 2, 2)
    assert not to_wire(request, pb.NextActionRequest).pushed.HasField("taken")
    assert {field.name for field, _ in to_wire(action, pb.Action).ListFields()} == {
        "kind",
        "round",
        "attempt",
        "opened",
    }
