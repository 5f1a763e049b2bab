"""A worker whose batches are shares: of as many examples as its turn says, each example once, whatever is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.rounds.round_messages import Action, ActionKind
from psruntime.core.rounds.rounds import Rounds
from psruntime.core.rounds.shares import Shares
from psruntime.graph.input.input_stream import InputStream
from psruntime.model import Context
from tests.graph.loop.test_round_loop import MODEL
from tests.support.local_cluster import LocalCluster, Run, train
from tests.support.round_control_plane import RoundControlPlane, lose_session, plain_batches

OWN = 8  # examples in a batch of the input
SHARES = [0, 3, 21, 8, 1]  # of the rounds
FIRST = np.cumsum([0, OWN, *SHARES[1:]]).tolist()


class SharesOfTheTest(Shares):
    """Those of SHARES, one round after the other."""

    opened = -1

    def open(self, members: Any) -> None:
        self.opened += 1

    def of(self, incarnation: int) -> int:
        return SHARES[self.opened % len(SHARES)]


def sync(folder: Any, on_action: Any = lambda *_: None, made: list[RoundControlPlane] | None = None) -> Run:
    def make_control_plane(*args: Any) -> RoundControlPlane:
        control_plane = RoundControlPlane(*args, on_action=on_action)
        control_plane.rounds = Rounds(shares=SharesOfTheTest())
        if made is not None:
            made.append(control_plane)
        return control_plane

    settings: dict[str, Any] = {"mode": "sync", "checkpoint_dir": str(folder), "batch_policy": "throughput"}
    return train(LocalCluster(2), MODEL, len(SHARES), make_control_plane=make_control_plane, **settings)


def check(run: Run) -> None:
    """What was contributed is what the turns said, and the variables are those of plain TensorFlow on it."""
    assert isinstance(run.control_plane, RoundControlPlane)
    said = {contribution.round: contribution for contribution in run.control_plane.contributed}
    sizes = [OWN, *SHARES[1:]]
    taken = [said[number].taken for number in range(1, len(SHARES) + 1)]
    assert [(part.first, part.size, part.batch_size) for part in taken if part] == [
        (first, size, OWN) for first, size in zip(FIRST, sizes, strict=False)
    ]
    assert all(part and 0 < part.seconds < 60 for part in taken)
    assert [said[number].examples for number in sorted(said)] == sizes
    inputs = InputStream(MODEL, Context("train", 0, 1, OWN, "", 3))
    whole = [np.concatenate(arrays) for arrays in zip(*(inputs.draw_endlessly() for _ in range(6)), strict=True)]
    inputs.close()
    cut = [[array[first : first + size] for array in whole] for first, size in zip(FIRST, sizes, strict=False)]
    plain = plain_batches(MODEL, [[number] for number in range(len(cut))], cut)
    reader = tf1.train.load_checkpoint(run.checkpoints.latest())
    for name, value in plain.items():
        np.testing.assert_allclose(reader.get_tensor(name), value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_batches_have_the_sizes_of_the_turns(tmp_path: Any) -> None:
    run = sync(tmp_path)
    check(run)
    assert [result.examples for result in run.results] == [OWN, *SHARES[1:]]


@pytest.mark.long
def test_a_batch_that_is_kept_for_a_later_view_keeps_its_size(tmp_path: Any, monkeypatch: Any) -> None:
    """The view is lost when round 3 begins, and round 2 with it, which that had to close: both open anew."""
    made: list[RoundControlPlane] = []
    said: list[tuple[int, int]] = []

    def note(control_plane: RoundControlPlane, action: Action) -> None:
        if action.kind is ActionKind.PUSH:
            said.append((action.round, action.share))
            shares = control_plane.rounds.shares
            assert isinstance(shares, SharesOfTheTest)
            if said[-1] == (3, 1):
                shares.opened = 2  # the rounds after it have those of SHARES

    lost = lose_session(monkeypatch, "compute", "before", occasion=3, also=lambda: made[0].change_view())
    run = sync(tmp_path, note, made)
    assert lost and [event["view"] for event in run.named("session")] == [1, 2]
    assert said == [(1, 0), (2, 3), (3, 21), (2, 8), (3, 1), (4, 8), (5, 1)]
    check(run)
