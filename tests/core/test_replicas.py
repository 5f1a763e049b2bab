"""Which buffer of the replicas brings back what a ps held."""

from __future__ import annotations

from psruntime.core.replicas import Note, next_buffer, usable

NONE, OLD, NEW, TORN = Note(), Note(11, 20), Note(22, 40), Note(33, 40)


def test_the_newest_that_is_complete() -> None:
    replicas = {0: [OLD, NEW], 1: [OLD, NEW]}
    assert usable({1}, 2, replicas, None) == 1
    assert usable({0}, 2, {0: [NEW, OLD], 1: [OLD, NEW]}, None) == 0


def test_a_copy_that_was_cut_off_is_passed_over() -> None:
    assert usable({1}, 2, {0: [OLD, NONE], 1: [OLD, NONE]}, None) == 0
    assert usable({1}, 2, {0: [OLD, NEW], 1: [OLD, NONE]}, None) == 0
    assert usable({0}, 2, {0: [OLD, NEW], 1: [OLD, NONE]}, None) == 1, "that of ps 0 is complete"
    assert usable({1}, 2, {0: [NONE, NONE], 1: [NONE, NONE]}, None) is None


def test_a_ps_whose_holder_is_lost_too_has_none() -> None:
    replicas = {ps: [OLD, NEW] for ps in range(4)}
    assert usable({1, 2}, 4, replicas, None) is None
    assert usable({1, 3}, 4, replicas, None) == 1
    assert usable({0, 1}, 2, replicas, None) is None
    assert usable(set(), 4, replicas, None) is None


def test_two_lost_ps_come_back_from_the_same_copy() -> None:
    replicas = {0: [OLD, NEW], 1: [OLD, NEW], 2: [OLD, NEW], 3: [OLD, NONE]}
    assert usable({1, 3}, 4, replicas, None) == 0
    assert usable({1, 3}, 4, {**replicas, 3: [NEW, TORN]}, None) is None


def test_in_mode_sync_those_that_live_must_have_the_same_round() -> None:
    replicas = {0: [OLD, NEW], 1: [OLD, NEW]}
    assert usable({1}, 2, replicas, {0: [OLD, NEW], 1: [NONE, NONE]}) == 1
    assert usable({1}, 2, replicas, {0: [OLD, NONE], 1: [NONE, NONE]}) == 0
    assert usable({1}, 2, replicas, {0: [NEW, OLD], 1: [NONE, NONE]}) is None


def test_the_next_copy_goes_where_the_newest_whole_one_is_not() -> None:
    assert next_buffer(2, {0: [NONE, NONE], 1: [NONE, NONE]}) == 0
    assert next_buffer(2, {0: [OLD, NONE], 1: [OLD, NONE]}) == 1
    assert next_buffer(2, {0: [OLD, NEW], 1: [OLD, NEW]}) == 0
    assert next_buffer(2, {0: [NEW, OLD], 1: [NEW, OLD]}) == 1
    assert next_buffer(2, {0: [OLD, NEW], 1: [OLD, NONE]}) == 1, "the newer one is whole on one ps only"
