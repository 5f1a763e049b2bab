"""What the record of a round says of how its sum was made."""

from __future__ import annotations

from typing import Any

from psruntime.core.members.membership import JudgedClock, tag_of
from psruntime.core.members.messages import Machine
from psruntime.core.members.view import PsEntry, View
from psruntime.core.rounds.past_round import past_round
from psruntime.core.rounds.round_messages import Applied, CutOff, Pushed
from psruntime.core.rounds.sync_rounds import SyncRounds


def test_the_record_names_the_order_of_a_sum_only_where_that_decides() -> None:
    """Two gradients of one scale give the same sum in either order."""

    def parts_of(*said: tuple[float, int, tuple[int, ...]]) -> list[dict[str, Any]]:
        contributions = {
            inc: Pushed(1, 1, 0, examples, divisor=divisor, positions=positions)
            for inc, (examples, divisor, positions) in enumerate(said, start=1)
        }
        members = {inc: inc - 1 for inc in contributions}
        parts: list[dict[str, Any]] = past_round(1, 1, 1, members, contributions).record["parts"]
        return parts

    assert all(not {"positions", "divisor"} & set(part) for part in parts_of((8, 2, (0,)), (8, 2, (1,))))
    assert [part["positions"] for part in parts_of((8, 2, (1,)), (4, 2, (0,)))] == [[1], [0]]
    assert [part["divisor"] for part in parts_of((8, 1, (1,)), (8, 1, (0,)))] == [1, 1]
    three = parts_of((8, 3, (0, 1)), (8, 3, (1, 0)), (8, 3, ()))
    assert [part.get("positions") for part in three] == [[0, 1], [1, 0], None], "one was repeated: it is not known"
    two_count = parts_of((8, 3, (0,)), (0, 3, (1,)), (8, 3, (2,)))
    assert not any("positions" in part for part in two_count), "what weighs nothing is not in the sum"


def test_the_record_names_machine_and_first_step_of_each_worker_before_its_first_round() -> None:
    sync = SyncRounds(30.0, lambda *_args, **_facts: None, JudgedClock(0.0))
    sync.admit(5, Machine("processor 5", 2, "2.21.0"))
    view = View(1, (PsEntry(0, "ps-0:1", 5), PsEntry(1, "ps-1:1", 6)))
    sync.prepared(view, "sync", 0, 0, {"plan": [2, 64, 32, 0]})
    for number in (1, 2):
        for incarnation in (7, 8):
            sync.admit(incarnation, Machine(f"processor {incarnation}", 4) if number == 1 else None, incarnation - 7)
            sync.take(incarnation, incarnation - 7, None)
        sync.update(lambda: [0, 1], 2, 0)
        for incarnation in (7, 8):
            sync.take(incarnation, incarnation - 7, Pushed(number, number, number - 1, 8.0, apart=True))
        sync.take(7, 0, Applied(number, number, number))
    records = sync.take_records()
    assert [record["record"] for record in records] == ["prepared", "worker", "worker", "round", "worker", "round"]
    assert records[0]["plan"] == [2, 64, 32, 0]
    assert records[0]["ps"] == [{"ps": 0, "processor": "processor 5", "threads": 2, "tensorflow": "2.21.0"}]
    assert [(r["worker"], r["processor"], r["threads"]) for r in records[1:3]] == [
        (0, "processor 7", 4), (1, "processor 8", 4)
    ]  # fmt: skip
    assert "began_at" not in records[1] and records[2]["began_at"] == 1
    assert records[4] == {"record": "worker", "worker": 1, "incarnation": tag_of(8), "began_at": 1}, "on a GPU"


def test_the_record_names_the_worker_whose_contribution_was_cut_off() -> None:
    sync = SyncRounds(30.0, lambda *_args, **_facts: None, JudgedClock(0.0))
    sync.prepared(View(1, ()), "sync", 0, 0, {})
    for incarnation in (7, 8):
        sync.take(incarnation, incarnation - 7, None)
    sync.update(lambda: [0, 1], 2, 0)
    sync.take(7, 0, Pushed(1, 1, 0, 8.0))
    for _ in range(2):  # a report that is repeated changes nothing
        sync.take(8, 1, CutOff(1, 1))
    void = {"record": "void", "round": 1, "attempt": 1, "cut_off": 1, "voided": [0]}
    assert sync.take_records()[1:] == [void]
    assert [sync.rounds.action_of(incarnation, 0).attempt for incarnation in (7, 8)] == [2, 2]
    sync.take(8, 1, Pushed(1, 2, 0, 8.0))
    sync.take(8, 1, CutOff(1, 2))
    assert sync.rounds.attempt == 2, "what it has reported as pushed counts"
