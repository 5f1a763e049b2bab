"""Ratings of items by users in the form of MovieLens, and a generated file of them.

A line is a user, an item, a rating and a time, with tabs between: `u.data` of MovieLens 100K.  Users and items are
numbers.

    python -m psruntime.examples.ratings u.data

writes the generated file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.examples.measures import recall_at
from psruntime.examples.text_lines import LineFormat

FORMAT = LineFormat(
    ("u.data", "ratings*.tsv", "ratings*.tsv.gz"),
    r"[0-9]{1,18}\t[0-9]{1,18}\t[0-9]+(\.[0-9]+)?\t[0-9]+",
    "a user, an item, a rating and a time, all of them numbers, with tabs between",
    lambda: generated_lines(),
)
LIKED = 4  # the least rating of an item that the user likes

USERS, ITEMS, LINES = 943, 1682, 100_000  # of the generated file, as in MovieLens 100K; both count from 1 there
SPREAD = 0.6  # of generated ratings around those by taste


class Ratings(NamedTuple):
    """users, items, ratings: integers [LINES].  chances [USERS, ITEMS]: that a user's line has this item, and liked."""

    users: Any
    items: Any
    ratings: Any
    chances: Any


def liked(lines: Any) -> tuple[Any, Any]:
    """lines [n] -> (users, items), int64 [liked]: those of the lines whose rating is LIKED or more."""
    nothing = tf1.constant([], tf1.int64)
    columns = [nothing, nothing, tf1.constant([], tf1.float32)]
    users, items, ratings = tf1.io.decode_csv(lines, columns, field_delim="\t", select_cols=[0, 1, 2])
    wanted = tf1.greater_equal(ratings, LIKED)
    return tf1.boolean_mask(users, wanted), tf1.boolean_mask(items, wanted)


def best_recall(k: int, held_out: int = 10) -> float:
    """The recall of the generated file's own chances, on the lines that are held out."""
    made = generated()
    rows = np.arange(held_out - 1, LINES, held_out)
    rows = rows[made.ratings[rows] >= LIKED]
    return recall_at(k, made.chances[made.users[rows]], made.items[rows])


def generated_lines() -> Iterator[str]:
    """The lines in the order of their times."""
    made = generated()
    times = 880_000_000 + np.arange(LINES)
    rows = np.stack([made.users + 1, made.items + 1, made.ratings, times], axis=1)
    return ("\t".join(map(str, row)) for row in rows.tolist())


@cache
def generated() -> Ratings:
    """A user rates items by their popularity and by taste, the same one more than once too, and likes them by taste."""
    random = np.random.RandomState(0)
    fit = random.normal(0, 1, [USERS, 4]) @ random.normal(0, 0.5, [4, ITEMS])
    rates = np.exp(random.normal(0, 1, ITEMS) + 1.5 * fit)
    rates /= np.sum(rates, axis=1, keepdims=True)
    counts = random.multinomial(LINES, random.dirichlet(np.ones(USERS)))
    items = np.concatenate([random.choice(ITEMS, count, p=rates[user]) for user, count in enumerate(counts)])
    users, order = np.repeat(np.arange(USERS), counts), random.permutation(LINES)
    users, items = users[order], items[order]
    ratings = np.round(LIKED - 1.5 + fit[users, items] + random.logistic(0, SPREAD, LINES))
    return Ratings(users, items, np.clip(ratings, 1, 5).astype(int), rates / (1 + np.exp((1 - fit) / SPREAD)))


if __name__ == "__main__":
    FORMAT.main()
