"""What of a long table or of many examples is played where: `make test`, `make test-all`, `make test-nightly`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def long_but(quick: Iterable[Any], cases: Iterable[Any], nightly: Iterable[Any] | None = None) -> list[Any]:
    """Cases for `parametrize`; of the others than `quick` every third is marked long, the rest nightly, by default."""
    quick, cases = list(quick), list(cases)
    if nightly is None:
        rest = [case for case in cases if case not in quick]
        nightly = [case for number, case in enumerate(rest) if number % 3]
    else:
        nightly = list(nightly)
    assert quick and all(case in cases for case in [*quick, *nightly]), f"not among the cases: {quick}, {nightly}"

    def marked(case: Any) -> Any:
        mark = pytest.mark.nightly if case in nightly else pytest.mark.long
        return case if case in quick else pytest.param(case, marks=mark)

    return [marked(case) for case in cases]


def examples(number: int) -> int:
    """How many examples Hypothesis plays where it plays `number` in profile "nightly"."""
    return max(1, number * settings().max_examples // settings.get_profile("nightly").max_examples)


def plays_all() -> bool:
    """Whether Hypothesis plays so many examples that all that may happen does."""
    return settings().max_examples >= settings.get_profile("nightly").max_examples
