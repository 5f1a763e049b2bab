"""A sample of the table of hardships; `make chaos` plays all of them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.chaos.hardships import KINDS, Hardship, read_promises
from tests.chaos.outcomes import MODES
from tests.support.cluster import Zygote

PROMISES = read_promises()
SAMPLE = ["the disk is full - sync", "the next chief sees another folder - async", "what away sends is lost - bounded"]


def test_every_hardship_has_a_promise_in_every_mode() -> None:
    assert set(PROMISES) == {f"{kind} - {mode}" for kind, mode in product(KINDS, MODES)}


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLE, ids=str)
def test_a_hardship_comes_out_as_promised(name: str, zygote: Zygote, tmp_path: Path) -> None:
    promise = PROMISES[name]
    if reason := KINDS[promise.hardship].needs():
        pytest.skip(reason)
    Hardship(promise, zygote, tmp_path).run()
