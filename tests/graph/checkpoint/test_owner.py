"""The owner of a folder: one live job, until it has ended or is dead."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from psruntime.core.members.messages import Instructions
from psruntime.core.members.view import Phase, PsEntry, View
from psruntime.errors import CheckpointError, FolderOwnedError
from psruntime.graph.checkpoint.owner import MARK, FolderOwner
from tests.support.polling import poll_until

LEASE_S = 0.2
PS, OTHER_PS = ["10.0.0.1:4000", "10.0.0.2:4000"], ["10.0.0.7:4000"]


def owner(
    folder: Path, job: str = "first", coordinator: str = "10.0.0.1:2222", lease_s: float = LEASE_S
) -> FolderOwner:
    return FolderOwner(str(folder), job, coordinator, lease_s)


def test_a_live_job_keeps_its_folder(tmp_path: Path) -> None:
    """Whatever the second job is called; the line names the first one."""
    first = owner(tmp_path, lease_s=60.0)
    first.claim(PS)
    for job, coordinator in (("first", "10.0.0.9:2222"), ("second", "10.0.0.1:2222")):
        with pytest.raises(FolderOwnedError, match="belongs to job first of coordinator 10"):
            owner(tmp_path, job, coordinator).claim(OTHER_PS, lambda: first._renew(PS))
    first.require_now()


def test_a_live_job_of_the_same_name_and_coordinator_keeps_its_folder_too(tmp_path: Path) -> None:
    """As in two networks that do not know each other; it is known by a mark that changes for longer than two leases."""
    first = owner(tmp_path)
    first.claim(PS)
    with pytest.raises(FolderOwnedError, match="belongs to job first of coordinator 10"):
        owner(tmp_path).claim(OTHER_PS, lambda: first._renew(PS))
    first.require_now()


def test_a_worker_knows_the_mark_of_every_view_that_it_has_seen(tmp_path: Path) -> None:
    """ps 0 comes back under a new address, and another worker than before becomes the chief."""
    first, next_chief = owner(tmp_path, lease_s=60.0), owner(tmp_path, lease_s=60.0)
    first.claim(PS[:1])
    next_chief.add_ps(PS[:1])
    next_chief.claim(OTHER_PS, never)


def test_a_chief_that_was_replaced_meanwhile_ends_nothing(tmp_path: Path) -> None:
    """It was paused while ps 0 and the chief were replaced, and renews the mark before it hears of that."""
    first, next_chief = owner(tmp_path), owner(tmp_path)
    first.claim(PS[:1])
    next_chief.add_ps(PS[:1])
    next_chief.claim(OTHER_PS, never)
    first._renew(PS[:1])
    first.require()
    with pytest.raises(CheckpointError, match="another chief has marked") as refused:
        first.require_now()
    assert not isinstance(refused.value, FolderOwnedError)
    first.claim(OTHER_PS, never)
    next_chief.require_now()


def test_a_new_process_waits_for_a_chief_that_has_yet_to_hear_that_it_was_replaced(tmp_path: Path) -> None:
    first, looks = owner(tmp_path), []

    def renew_once() -> None:
        looks.append(1)
        if len(looks) == 1:
            first._renew(PS[:1])

    first.claim(PS[:1])
    owner(tmp_path).claim(OTHER_PS, renew_once)
    assert len(looks) > 1


def test_an_ended_job_frees_it_and_a_dead_one_after_two_leases(tmp_path: Path) -> None:
    first = owner(tmp_path)
    first.claim(PS)
    first.release()
    assert not os.listdir(tmp_path)
    looks: list[int] = []
    owner(tmp_path).claim(PS)
    owner(tmp_path, "second").claim(OTHER_PS, lambda: looks.append(1))
    assert looks, "it was watched"
    assert json.loads((tmp_path / MARK).read_text())["job_id"] == "second"
    assert os.listdir(tmp_path) == [MARK]


def never() -> None:
    raise AssertionError("it was watched")


def test_another_chief_of_the_job_takes_it_at_once_and_the_first_one_writes_no_more(tmp_path: Path) -> None:
    first, next_chief = owner(tmp_path, lease_s=60.0), owner(tmp_path, lease_s=60.0)
    first.claim(PS)
    next_chief.claim(["10.0.0.3:4000", PS[1]], never)
    third = owner(tmp_path, "third", lease_s=60.0)
    (tmp_path / MARK).unlink()
    third.claim(OTHER_PS, never)
    with pytest.raises(FolderOwnedError, match="belongs to job third"):
        next_chief.require_now()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_mark_that_says_nothing_is_watched(text: str, tmp_path: Path) -> None:
    (tmp_path / MARK).write_text(text)
    owner(tmp_path).claim(PS)


def test_where_the_disk_is_full_the_mark_is_renewed(tmp_path: Path, monkeypatch: Any) -> None:
    first = owner(tmp_path)
    first.claim(PS)
    before = os.stat(tmp_path / MARK).st_mtime_ns

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(first, "_write", full)
    first._renew(PS)
    assert os.stat(tmp_path / MARK).st_mtime_ns > before


def test_of_two_jobs_that_find_no_mark_one_gets_the_folder(tmp_path: Path, monkeypatch: Any) -> None:
    """The other one finds its mark at the next look, and does not begin."""
    slow, fast = owner(tmp_path, "slow"), owner(tmp_path, "fast", lease_s=60.0)
    read, looks = slow._read, iter([None])

    def late() -> Any:
        seen = next(looks, read())
        return fast.claim(OTHER_PS) if seen is None else seen

    monkeypatch.setattr(slow, "_read", late)
    with pytest.raises(FolderOwnedError, match="belongs to job fast"):
        slow.claim(PS, lambda: fast._renew(OTHER_PS))


def test_a_chief_that_follows_a_killed_one_leaves_the_mark_where_it_is(tmp_path: Path) -> None:
    """Also if it saves before it has renewed it."""
    address = "127.0.0.1:4000"
    killed, follower = (owner(tmp_path, coordinator="127.0.0.1:2222", lease_s=60.0) for _ in range(2))
    killed.claim([address])
    facts = json.loads((tmp_path / MARK).read_text())
    (tmp_path / MARK).write_text(json.dumps({**facts, "started": "another process"}))
    instructions = Instructions(Phase.TRAINING, "", View(1, (PsEntry(0, address, 1),)), chief=True)
    follower.keep(lambda: instructions)
    follower.require_now()
    assert json.loads((tmp_path / MARK).read_text())["writer"] == facts["writer"]
    follower.stop()


@pytest.mark.parametrize(("saved_step", "marks"), [(None, True), (100, False)])
def test_a_chief_that_does_not_see_the_newest_checkpoint_marks_nothing(
    tmp_path: Path, saved_step: int | None, marks: bool
) -> None:
    """As where the folder of the others is not mounted."""
    looks: list[Instructions] = []

    def instructions() -> Instructions:
        view = View(1, (PsEntry(0, PS[0], 1),))
        looks.append(Instructions(Phase.TRAINING, "", view, chief=True, saved_step=saved_step))
        return looks[-1]

    chief = owner(tmp_path, lease_s=0.01)
    chief.keep(instructions)
    poll_until(lambda: len(looks) > 5, 30, "looks of the chief at its folder")
    assert (tmp_path / MARK).exists() == marks
    chief.stop()
