"""A dynamic table as a dictionary in Python: which ids have rows, and what these hold, after each batch.

Trains the model of `dynamic_model` with Adagrad, in float32 as TensorFlow does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

import psruntime
from psruntime.graph.embedding.dynamic_table import BITS, InitialRows
from psruntime.model import Context, Model, ModelSpec

WAYS = 32
WIDTH = 3
RATE = 0.1
ACCUMULATED = 0.1  # by Adagrad, before the first gradient


def hashed(numbers: Any) -> Any:
    """uint64 -> uint64, as psruntime.graph.embedding.dynamic_table."""
    with np.errstate(over="ignore"):
        bits = np.asarray(numbers).astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
        return bits ^ (bits >> np.uint64(31))


def uniform_rows(initial: InitialRows, numbers: Any, width: int = WIDTH) -> Any:
    """The initial rows of ids, int64 [ids], of a uniform distribution; float32 [ids, width]."""
    with np.errstate(over="ignore"):
        of_ids = hashed(np.asarray(numbers, np.int64).astype(np.uint64) + np.uint64(initial.salt))
        columns = np.arange(1, width + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = (hashed(of_ids[:, None] + columns) >> np.uint64(64 - BITS)).astype(np.float32)
    uniform = (bits + np.float32(0.5)) * np.float32(2.0**-BITS)
    return np.float32(initial.first) + np.float32(initial.second - initial.first) * uniform


@dataclass
class Row:
    used: int
    seen: int
    values: Any = None
    accumulator: Any = None


@dataclass
class Set:
    """One set.  ways: the id in each, or None.  candidates: the same of those that wait."""

    ways: list[int | None] = field(default_factory=lambda: [None] * WAYS)
    rows: dict[int, Row] = field(default_factory=dict)
    candidates: list[int | None] = field(default_factory=lambda: [None] * WAYS)
    waiting: dict[int, Row] = field(default_factory=dict)


class DynamicReference:
    """sets: of the whole table.  in_order: of the ids of an update, those of mode sync are sorted."""

    def __init__(
        self,
        sets: int,
        initial: InitialRows,
        admit_after: int = 1,
        expire_after: int = 0,
        in_order: Callable[[Iterable[int]], Iterable[int]] = iter,
    ) -> None:
        self.sets = [Set() for _ in range(sets)]
        self.counts = dict.fromkeys(("found", "admitted", "refused", "expired", "evicted"), 0)
        self.clock = 0
        self._initial, self._admit_after, self._expire_after = initial, admit_after, expire_after
        self._in_order = in_order
        self._sets_of: dict[int, int] = {}  # of the ids of a batch
        self._new: dict[int, Any] = {}  # their initial rows

    def read(self, numbers: Any) -> Any:
        """The rows of ids, int64 [ids], as a lookup gives them."""
        rows = uniform_rows(self._initial, numbers)
        for place, number in enumerate(numbers.tolist()):
            row = self._set(number).rows.get(number)
            if row and self._is_live(row):
                rows[place] = row.values
        return rows

    def step(self, ids: Any, labels: Any) -> float:
        """One update by a batch, ids [batch, any]; the loss before it."""
        unique, first, places = np.unique(ids, return_index=True, return_inverse=True)
        self._sets_of = dict(zip(unique.tolist(), self._numbers(unique), strict=True))
        rows = self.read(unique)[places.reshape(ids.shape)]
        errors = rows.sum(axis=(1, 2)) - labels
        each = np.broadcast_to((2 * errors / len(ids)).astype(np.float32)[:, None], ids.shape)
        sums = np.bincount(places.ravel(), weights=each.ravel(), minlength=len(unique)).astype(np.float32)
        self._new = dict(zip(unique.tolist(), uniform_rows(self._initial, unique), strict=True))
        gradients = dict(zip(unique.tolist(), sums, strict=True))
        self._update({number: gradients[number] for number in self._in_order(unique[np.argsort(first)].tolist())})
        return float(np.mean(errors**2))

    def _update(self, gradients: dict[int, Any]) -> None:
        self.clock += 1
        unknown: list[int] = []
        for number in gradients:
            place, row = self._set(number), self._set(number).rows.get(number)
            if row and self._is_live(row):
                row.used, row.seen = self.clock, row.seen + 1
                self.counts["found"] += 1
                continue
            if row:
                place.ways[place.ways.index(number)] = None
                del place.rows[number]
                self.counts["expired"] += 1
            unknown.append(number)
        for number, seen in self._admissible(unknown):
            self._admit(number, seen)
        for number, gradient in gradients.items():
            row = self._set(number).rows.get(number)
            if row and row.used == self.clock:
                row.accumulator = row.accumulator + gradient * gradient
                row.values = row.values - np.float32(RATE) * gradient / np.sqrt(row.accumulator)
            else:
                self.counts["refused"] += 1

    def _admissible(self, unknown: list[int]) -> list[tuple[int, int]]:
        if self._admit_after == 1:
            return [(number, 1) for number in unknown]
        due, new = [], []
        for number in unknown:
            place, candidate = self._set(number), self._set(number).waiting.get(number)
            if not candidate:
                new.append(number)
                continue
            candidate.seen = candidate.seen + 1 if self._is_live(candidate) else 1
            candidate.used = self.clock
            if candidate.seen >= self._admit_after:
                place.candidates[place.candidates.index(number)] = None
                due.append((number, place.waiting.pop(number).seen))
        for number in new:
            place = self._set(number)
            if (way := self._way(place.candidates, place.waiting)) is not None:
                place.waiting.pop(place.candidates[way] or 0, None)
                place.candidates[way] = number
                place.waiting[number] = Row(self.clock, 1)
        return due

    def _admit(self, number: int, seen: int) -> None:
        place = self._set(number)
        way = self._way(place.ways, place.rows)
        if way is None:
            return
        before = place.ways[way]
        if before is not None:
            self.counts["evicted" if self._is_live(place.rows[before]) else "expired"] += 1
            del place.rows[before]
        place.ways[way] = number
        accumulator = np.full(WIDTH, ACCUMULATED, np.float32)
        place.rows[number] = Row(self.clock, seen, self._new[number], accumulator)
        self.counts["admitted"] += 1

    def _way(self, ways: list[int | None], rows: dict[int, Row]) -> int | None:
        def rank(way: int) -> tuple[int, int]:
            number = ways[way]
            if number is None:
                return -2, way
            return (rows[number].used if self._is_live(rows[number]) else -1), way

        best = min(range(WAYS), key=rank)
        return best if rank(best)[0] < self.clock else None

    def _is_live(self, row: Row) -> bool:
        return not self._expire_after or self.clock - row.used <= self._expire_after

    def _set(self, number: int) -> Set:
        return self.sets[self._sets_of[number] if number in self._sets_of else self._numbers(np.array([number]))[0]]

    def _numbers(self, ids: Any) -> list[int]:
        """Of the sets of ids, int64 [ids]."""
        return (hashed(ids.astype(np.uint64)) % np.uint64(len(self.sets))).tolist()  # type: ignore[no-any-return]


def dynamic_model(ids: Any, labels: Any, optimizer: Any = tf1.train.AdagradOptimizer, **table: Any) -> Model:
    """The sum of all entries of the embeddings of ids [examples, any] is to be the label.  table: of `embedding`."""

    def input_fn(context: Context) -> Any:
        return tf1.data.Dataset.from_tensor_slices((ids, labels)).batch(context.batch_size, drop_remainder=True)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        rows = psruntime.embedding(features, "table", WIDTH, **table)
        prediction = tf1.reduce_sum(rows, axis=[1, 2])
        metrics = {"mean": tf1.metrics.mean(prediction)} if mode == "eval" else None
        return ModelSpec(tf1.reduce_mean(tf1.square(prediction - labels)), optimizer, RATE, metrics=metrics)

    return Model("tests.dynamic", input_fn, model_fn)


def skewed_ids(seed: int, shape: tuple[int, ...], skew: float = 1.2) -> Any:
    """int64, of a zipf whose numbers are spread over all of int64."""
    return hashed(np.random.RandomState(seed).zipf(skew, shape).astype(np.uint64)).astype(np.int64)
