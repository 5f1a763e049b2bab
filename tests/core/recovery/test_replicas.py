"""Which copy brings back what a ps held."""

from __future__ import annotations

from psruntime.core.recovery.recovery import Note, Notes, newest_source, next_buffer

NONE, OLD, NEW, TORN = Note(), Note(11, 20), Note(22, 40), Note(33, 40)


def buffer_of(lost: set[int], num_ps: int, replicas: Notes) -> int | None:
    """In mode async, where the lost ps are fresh."""
    source = newest_source(lost, lost, num_ps, replicas, None)
    assert source is None or source.from_next == lost
    return source and source.buffer


def test_the_newest_that_is_complete() -> None:
    replicas = {0: [OLD, NEW], 1: [OLD, NEW]}
    assert buffer_of({1}, 2, replicas) == 1
    assert buffer_of({0}, 2, {0: [NEW, OLD], 1: [OLD, NEW]}) == 0


def test_a_copy_that_was_cut_off_is_passed_over() -> None:
    assert buffer_of({1}, 2, {0: [OLD, NONE], 1: [OLD, NONE]}) == 0
    assert buffer_of({1}, 2, {0: [OLD, NEW], 1: [OLD, NONE]}) == 0
    assert buffer_of({0}, 2, {0: [OLD, NEW], 1: [OLD, NONE]}) == 1, "that of ps 0 is complete"
    assert buffer_of({1}, 2, {0: [NONE, NONE], 1: [NONE, NONE]}) is None


def test_a_ps_whose_holder_is_lost_too_has_none() -> None:
    replicas = {ps: [OLD, NEW] for ps in range(4)}
    assert buffer_of({1, 2}, 4, replicas) is None
    assert buffer_of({1, 3}, 4, replicas) == 1
    assert buffer_of({0, 1}, 2, replicas) is None
    assert buffer_of(set(), 4, replicas) is None


def test_two_lost_ps_come_back_from_the_same_copy() -> None:
    replicas = {0: [OLD, NEW], 1: [OLD, NEW], 2: [OLD, NEW], 3: [OLD, NONE]}
    assert buffer_of({1, 3}, 4, replicas) == 0
    assert buffer_of({1, 3}, 4, {**replicas, 3: [NEW, TORN]}) is None


def test_in_mode_sync_those_that_live_must_have_the_same_round() -> None:
    replicas = {0: [OLD, NEW], 1: [OLD, NEW]}
    cases = [([OLD, NEW], 1), ([OLD, NONE], 0), ([TORN, TORN], None)]
    for of_ps_0, buffer in cases:
        source = newest_source(range(2), {1}, 2, replicas, {0: of_ps_0, 1: [NONE, NONE]})
        assert (source and source.buffer) == buffer
        assert source is None or source.from_next == {1}


def test_in_mode_sync_nobody_has_to_be_lost() -> None:
    """A round was torn, or a recovery was cut off: all have their copies, and go back to them."""
    notes = {0: [OLD, NEW], 1: [OLD, NEW]}
    source = newest_source(range(2), set(), 2, notes, notes)
    assert source is not None and (source.buffer, source.note, source.from_next) == (1, NEW, frozenset())


def test_what_a_ps_keeps_itself_need_not_be_on_the_next_one() -> None:
    """The next one was lost and is back since: it has no copy yet."""
    source = newest_source(range(2), set(), 2, {0: [NONE, NONE], 1: [OLD, NEW]}, {0: [OLD, NEW], 1: [NONE, NONE]})
    assert source is not None and (source.note, source.from_next) == (NEW, frozenset({1}))


def test_the_next_copy_goes_where_the_newest_whole_one_is_not() -> None:
    assert next_buffer(2, {0: [NONE, NONE], 1: [NONE, NONE]}) == 0
    assert next_buffer(2, {0: [OLD, NONE], 1: [OLD, NONE]}) == 1
    assert next_buffer(2, {0: [OLD, NEW], 1: [OLD, NEW]}) == 0
    assert next_buffer(2, {0: [NEW, OLD], 1: [NEW, OLD]}) == 1
    assert next_buffer(2, {0: [OLD, NEW], 1: [OLD, NONE]}) == 1, "the newer one is whole on one ps only"
