"""Criteo's format of clicks on advertisements, and a generated file of it.

A line is a label, 13 integers and 26 categories of up to 8 hexadecimal digits, with tabs between; integers may be
negative, and all but the label may be missing.  Kaggle's Display Advertising Challenge (2014, `train.txt`) and the
Terabyte Click Logs (`day_0` and so on) have it.

    python -m psruntime.examples.criteo train.txt

writes the generated file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.examples.measures import auc
from psruntime.examples.text_lines import LineFormat

NUMBERS, CATEGORIES = 13, 26
FORMAT = LineFormat(
    ("train.txt", "train_*.txt", "train*.txt.gz", "day_*"),
    rf"[01](\t-?[0-9]{{1,18}}|\t){{{NUMBERS}}}(\t[0-9a-fA-F]{{0,8}}){{{CATEGORIES}}}",
    f"a label 0 or 1, {NUMBERS} integers and {CATEGORIES} categories of up to 8 hexadecimal digits, with tabs between",
    lambda: generated_lines(),
)
# Different values of each category in Kaggle's train.txt, as the authors of DLRM give them.
KAGGLE_IDS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip

LINES = 60_000  # of the generated file
IDS = tuple(int(ids) for ids in np.geomspace(4, 1000, CATEGORIES))  # different values of its categories


def parsed(lines: Any, rows: Sequence[int]) -> tuple[Any, Any]:
    """lines [n] -> ({"numbers": [n, 13] float32, "categories": [n, 26] int64 below `rows`}, labels [n] float32).

    A number x is log(1 + x), and 0 if it is negative or missing.
    """
    defaults = [[0.0], *[[0.0]] * NUMBERS, *[[""]] * CATEGORIES]
    columns = tf1.io.decode_csv(lines, defaults, field_delim="\t", use_quote_delim=False)
    numbers = tf1.log1p(tf1.nn.relu(tf1.stack(columns[1 : 1 + NUMBERS], axis=1)))
    categories = tf1.stack(columns[1 + NUMBERS :], axis=1)
    return {"numbers": numbers, "categories": hashed(categories, rows)}, columns[0]


def hashed(categories: Any, rows: Sequence[int]) -> Any:
    """categories [n, columns] string -> row [n, columns] int64 of each column's table; row 0 is for missing values."""
    others = tf1.constant([count - 1 for count in rows], tf1.int64)
    found = 1 + tf1.strings.to_hash_bucket_fast(categories, 1 << 62) % others
    return tf1.where(tf1.equal(categories, ""), tf1.zeros_like(found), found)


def best_auc(held_out: int = 10) -> float:
    """The AUC of the generated file's own chances, on the lines that are held out."""
    lines, chances = clicks()
    return auc([line[0] == "1" for line in lines[held_out - 1 :: held_out]], chances[held_out - 1 :: held_out])


def generated_lines() -> list[str]:
    """The lines, the same at each call."""
    return clicks()[0]


@cache
def clicks() -> tuple[list[str], Any]:
    """(generated lines, the chances [lines] that their labels were drawn with).

    A chance depends on a weight for each number and each value of a category, and on the pair of two categories.
    """
    random = np.random.RandomState(0)
    numbers = np.exp(random.normal(1.5, 1.2, [LINES, NUMBERS])).astype(int) - random.randint(3, size=NUMBERS)
    ids = np.stack([random.zipf(1.3, LINES) % count for count in IDS], axis=1)
    has_number, has_id = (random.uniform(size=[LINES, columns]) > 0.15 for columns in (NUMBERS, CATEGORIES))
    logits = np.log1p(np.maximum(numbers, 0) * has_number) @ random.normal(0, 0.15, NUMBERS)
    tastes = []
    for column, count in enumerate(IDS):
        known, own = has_id[:, column], ids[:, column]
        logits += random.normal(0, 0.35, count)[own] * known
        tastes.append(random.normal(0, 0.3, [count, 2])[own] * known[:, None])
    logits += sum(np.sum(one * other, axis=1) for one, other in zip(tastes[::2], tastes[1::2], strict=True))
    chances = 1 / (1 + np.exp(1 - (logits - logits.mean())))
    labels = random.uniform(size=[LINES, 1]) < chances[:, None]
    columns = [labels.astype(int).astype(str), np.where(has_number, numbers.astype(str), "")]
    columns += [np.where(has_id[:, [column]], _values(column)[ids[:, [column]]], "") for column in range(CATEGORIES)]
    return ["\t".join(row) for row in np.concatenate(columns, axis=1).tolist()], chances


def _values(column: int) -> Any:
    """All values of a generated category, [ids] string."""
    return np.array([f"{crc32(f'{column} {number}'.encode()):08x}" for number in range(IDS[column])])


if __name__ == "__main__":
    FORMAT.main()
