"""--staleness-lr: the formulas in numbers, and what is no rule."""

from __future__ import annotations

import math

import pytest

from psruntime.config import JobConfig
from psruntime.config.values import StalenessLr
from psruntime.errors import UsageError


def rule(text: str) -> StalenessLr:
    found = StalenessLr.of(text)
    assert found is not None
    return found


@pytest.mark.parametrize(("staleness", "weight"), [(0, 1.0), (1, 1.0), (2, 1 / 2), (3, 1 / 3), (100, 0.01)])
def test_inverse(staleness: int, weight: float) -> None:
    assert rule("inverse").weight(staleness) == pytest.approx(weight, rel=1e-12)


@pytest.mark.parametrize(
    ("staleness", "weight"), [(0, 1.0), (1, math.exp(-0.5)), (4, math.exp(-2)), (100, math.exp(-50))]
)
def test_exponential(staleness: int, weight: float) -> None:
    assert rule("exponential:0.5").weight(staleness) == pytest.approx(weight, rel=1e-12)


def test_without_the_flag_there_is_no_rule() -> None:
    assert StalenessLr.of("") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("linear", "staleness_lr must be inverse or exponential:RATE, got 'linear'"),
        ("exponential", "staleness_lr must be inverse or exponential:RATE, got 'exponential'"),
        ("inverse:2", "staleness_lr must be inverse or exponential:RATE, got 'inverse:2'"),
        *(
            (f"exponential:{rate}", "needs a number above 0, per version")
            for rate in ("", "0", "-1", "nan", "inf", "x")
        ),
    ],
)
def test_what_is_no_rule(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        StalenessLr.of(text)


@pytest.mark.parametrize("mode", [{"mode": "async"}, {"mode": "bounded", "bound": 2}])
def test_the_modes_in_which_updates_are_stale_take_it(mode: dict[str, object]) -> None:
    assert JobConfig(**mode, staleness_lr="inverse").staleness_lr == "inverse"  # type: ignore[arg-type]


def test_mode_sync_refuses_it() -> None:
    with pytest.raises(
        UsageError,
        match="staleness_lr is for mode async and bounded, the mode is sync: in mode sync no update is stale",
    ):
        JobConfig(mode="sync", staleness_lr="inverse")
