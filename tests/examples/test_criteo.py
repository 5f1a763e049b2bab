"""Criteo's format: what a line means, which lines are none, and what the generated ones say of their labels."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.examples import criteo
from psruntime.examples.measures import auc, recall_at
from tests.examples.drawing import computed

ROWS = [5, 1000, *[50] * 24]


def line(label: object = 1, numbers: dict[int, object] = {}, categories: dict[int, str] = {}) -> str:  # noqa: B006
    """Whose other columns are missing."""
    columns = [numbers.get(n, "") for n in range(13)] + [categories.get(n, "") for n in range(26)]
    return "\t".join(map(str, [label, *columns]))


LINES = [
    line(1, {0: 5, 1: -3, 12: 0}, {0: "68fd1e64", 1: "68fd1e64", 25: "c84c4aec"}),
    line(0, {0: 2**40}, {0: "68fd1e64", 2: "0"}),
    line(0),
]
BROKEN = {
    "no line": "",
    "a column too few": line().removesuffix("\t"),
    "one too many": line() + "\t",
    "a third label": line(2),
    "no label": line(""),
    "a fraction": line(numbers={3: "1.5"}),
    "no number": line(numbers={3: "x"}),
    "a minus alone": line(numbers={3: "-"}),
    "no hexadecimal digits": line(categories={25: "68fd1e6g"}),
    "nine digits": line(categories={25: "68fd1e641"}),
    "blanks": line().replace("\t", " "),
    "commas": line().replace("\t", ","),
}


def test_what_a_line_means() -> None:
    features, labels = computed(lambda: criteo.parsed(tf1.constant(LINES), ROWS))
    numbers, rows = features["numbers"], features["categories"]
    np.testing.assert_array_equal(labels, np.float32([1, 0, 0]))
    expected = np.zeros([3, 13], np.float32)
    expected[0, 0], expected[1, 0] = np.log(6), np.log(1 + 2.0**40)
    np.testing.assert_allclose(numbers, expected, rtol=1e-6)
    given = np.zeros([3, 26], bool)
    given[[0, 0, 0, 1, 1], [0, 1, 25, 0, 2]] = True
    np.testing.assert_array_equal(rows > 0, given)  # a row of its own for what is missing
    assert rows.dtype == np.int64 and (rows < ROWS).all()
    assert rows[0, 0] == rows[1, 0] and rows[0, 0] != rows[0, 1], "of one table the same row, of a larger one another"


def test_values_are_spread_over_all_rows() -> None:
    values = [[f"{value:08x}"] for value in range(2000)]
    assert set(computed(lambda: criteo.hashed(tf1.constant(values), [50]))[:, 0]) == set(range(1, 50))


@pytest.mark.parametrize("why", BROKEN)
def test_lines_that_are_none(why: str) -> None:
    assert not computed(lambda: tf1.strings.regex_full_match(BROKEN[why], criteo.FORMAT.line))


@pytest.mark.long
def test_generated_lines_are_of_the_format_and_their_labels_can_be_predicted_in_part() -> None:
    lines, chances = criteo.clicks()
    assert len(lines) == len(chances) == criteo.LINES
    assert all(re.fullmatch(criteo.FORMAT.line, each) for each in [*LINES, *lines])
    share = np.mean([each[0] == "1" for each in lines])
    assert share == pytest.approx(chances.mean(), abs=0.01)
    assert 0.84 < criteo.best_auc() < 0.85


def test_measures_are_what_they_are_by_definition() -> None:
    random = np.random.RandomState(0)
    labels, scores = random.randint(2, size=40), random.normal(size=40)
    pairs = [a > b for a, b in product(scores[labels > 0], scores[labels == 0])]
    assert auc(labels, scores) == pytest.approx(np.mean(pairs))
    of_items, wanted = random.normal(size=[60, 20]), random.randint(20, size=60)
    among = [w in np.argsort(row)[-3:] for row, w in zip(of_items, wanted, strict=True)]
    assert 0 < recall_at(3, of_items, wanted) == np.mean(among)
