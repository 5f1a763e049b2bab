"""Which cases of a table are long, and how many examples Hypothesis plays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings


def long_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`, of which all but those of `quick` are marked long."""
    quick, cases = list(quick), list(cases)
    assert quick and all(case in cases for case in quick), f"not among the cases: {quick}"
    return [case if case in quick else pytest.param(case, marks=pytest.mark.long) for case in cases]


def long_after(number: int, cases: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Cases of several arguments for `parametrize`, of which all after the first `number` are marked long."""
    assert 0 < number < len(cases)
    return [*cases[:number], *(pytest.param(*case, marks=pytest.mark.long) for case in cases[number:])]


def examples(number: int) -> int:
    """How many examples Hypothesis plays where it plays `number` in profile "all"."""
    return max(1, number * settings().max_examples // settings.get_profile("all").max_examples)


def plays_all() -> bool:
    """Whether Hypothesis plays so many examples that all that may happen does."""
    return settings().max_examples >= settings.get_profile("all").max_examples
