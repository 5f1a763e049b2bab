"""The two-tower model: its loss, its estimate of chances and its metric are what numpy makes of their definitions."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.examples import ratings, two_tower
from psruntime.examples.measures import recall_at
from psruntime.examples.two_tower import TwoTower, sampled_softmax_loss, sampling_chances
from tests.examples.drawing import computed, planned

ITEMS = 12


def test_the_corrected_softmax_among_the_items_of_the_batch() -> None:
    random = np.random.RandomState(0)
    items = np.array([3, 5, 3, 7, 0])
    similar, chances = random.normal(size=[5, 5]).astype(np.float32), random.uniform(0.01, 1, 5).astype(np.float32)
    expected = []
    for own in range(5):
        others = [other for other in range(5) if items[other] != items[own]]
        weights = np.exp(similar[own] - np.log(chances))
        expected.append(-np.log(weights[own] / (weights[own] + weights[others].sum())))
    found = computed(lambda: sampled_softmax_loss(*map(tf1.constant, (similar, items, chances))))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_chances_are_one_by_the_mean_gap_between_batches() -> None:
    """Algorithm 2 of Yi et al. 2019, an item at a time."""
    random = np.random.RandomState(0)
    last, gap = defaultdict(int), defaultdict(lambda: two_tower.FIRST_GAP)
    with tf1.Graph().as_default(), tf1.Session() as session:
        fed = tf1.placeholder(tf1.int64, [None])
        chances, update = sampling_chances(fed, ITEMS)
        session.run(tf1.global_variables_initializer())
        for step in range(1, 200):
            items = [0, *random.zipf(1.5, 6) % ITEMS]
            for item in set(items):
                gap[item] = (1 - two_tower.GAP_RATE) * gap[item] + two_tower.GAP_RATE * (step - last[item])
                last[item] = step
            found, _ = session.run([chances, update], {fed: items})
            np.testing.assert_allclose(found, [1 / gap[item] for item in items], rtol=1e-4)
    assert found[0] > 0.9, "it is in every batch"


def test_recall_is_among_all_items() -> None:
    random = np.random.RandomState(0)
    users, items = random.randint(20, size=50), random.randint(40, size=50)
    model = TwoTower(users=20, items=40, width=4)

    def values() -> list[object]:
        spec = model.model_fn(tf1.constant(users), tf1.constant(items), "eval")
        return [spec.metrics["recall_at_10"][1], spec.predictions, model._tower("item", tf1.range(40), 40)]

    found, user_vectors, item_vectors = computed(values)
    assert 0 < found < 1 and found == pytest.approx(recall_at(10, user_vectors @ item_vectors.T, items))


def test_what_is_liked() -> None:
    lines = ["196\t242\t3\t881250949", "186\t302\t4\t891717742", "22\t377\t4.5\t878887116", "1\t2\t5\t0"]
    users, items = computed(lambda: ratings.liked(tf1.constant(lines)))
    assert users.tolist() == [186, 22, 1] and items.tolist() == [302, 377, 2]
    assert all(re.fullmatch(ratings.FORMAT.line, line) for line in [*lines, *ratings.generated_lines()])


@pytest.mark.parametrize(
    "line", ["", "1\t2\t3", "1,2,3,4", "1\t2\t3\t4\t5", "u1\t2\t3\t4", "userId\tmovieId\trating\ttime"]
)
def test_lines_that_are_none(line: str) -> None:
    assert not computed(lambda: tf1.strings.regex_full_match(line, ratings.FORMAT.line))


def test_generated_ratings_say_more_than_what_is_popular() -> None:
    made = ratings.generated()
    liked = made.ratings >= ratings.LIKED
    held_out = np.arange(ratings.LINES) % 10 == 9
    wanted = made.items[liked & held_out]
    popular = np.bincount(made.items[liked & ~held_out], minlength=ratings.ITEMS) + np.linspace(0, 0.5, ratings.ITEMS)
    by_popularity = recall_at(10, np.tile(popular, [len(wanted), 1]), wanted)
    assert by_popularity < 0.12 and 0.33 < ratings.best_recall(10) < 0.34


def test_both_tables_are_one_group_with_rows_on_every_ps() -> None:
    plan = planned("psruntime.examples.two_tower", num_ps=2)
    (group,) = plan.groups
    assert [(table.name, table.rows) for table in group.tables] == [("user/table", 1000), ("item/table", 2000)]
    assert [bucket.name for bucket in plan.copies] == ["sampling/step", "sampling/last_step", "sampling/gap"]
