"""A trained run, whose steps are then run by hand: any header, any pulled version, and everything to look at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np

from psruntime.core.accounting.accounts import APPLIED, PENDING
from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.graph.base.variable_values import LASTING
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP, BucketStore
from tests.support.local_cluster import INCARNATION, Run

ORIGIN = 5  # of pushes by hand: no process that trained


class ByHand:
    """Pushes of worker 0 on the ps of `run`, each of the next one of `drawn`, the batches of a step."""

    def __init__(self, run: Run, drawn: list[list[Any]]) -> None:
        self.run = run
        self._graph = run.graph
        self._drawn = cycle(drawn)
        self._stores = [*run.graph.model.stores.values(), run.graph.global_step]
        with run.graph.graph.as_default():
            self._held = {store.bucket.name: self._values(store) for store in self._stores}
            for rounds in run.graph.rounds.sections if run.graph.rounds else []:
                books = {"unit": rounds.scale.read_value(), "books": rounds.state.read_value()}
                for each in rounds.sums:
                    total = dict(zip(("sum", "rows"), each.sum.read().tensors, strict=False))
                    self._held[each.store.bucket.name].update(**total, **books)
            of_worker = run.graph.graph.get_collection(LASTING)
            residues = {v.op.name.removeprefix("psruntime/residue/"): v for v in of_worker}
            self._residues = {name: residues[name].read_value() for name in self._held if name in residues}
        plan, views = run.graph.plan, run.graph.model.reads
        self._pulled = {spec.name: views[spec.name].value for spec in plan.trained if not spec.sparse}
        self.session = run.cluster.session(run.graph.graph)

    def _values(self, store: BucketStore) -> dict[str, Any]:
        master, *others = self._graph.values_of(store)
        values = {"master": master, **{v.op.name.rpartition("/")[2]: v for v in others}}
        return {"version": store.version(), **{name: variable.read_value() for name, variable in values.items()}}

    def look(self) -> dict[str, dict[str, Any]]:
        """Bucket -> all that its ps holds of it, but for ledger and pushes: `master`, `version`, the optimizer's
        variables by their names (`Adam`, `beta1_power`), and in mode sync `sum`, `rows`, `unit` and `books`."""
        held: dict[str, dict[str, Any]] = self.session.run(self._held)
        return held

    def pulled(self) -> dict[str, Any]:
        """Variable -> its value as the model sees it; not of tables, of which it sees rows."""
        pulled: dict[str, Any] = self.session.run(self._pulled)
        return pulled

    def residues(self) -> dict[str, Any]:
        """Bucket -> what the rounding of pushes has left over on the worker; only of those that keep it."""
        found: dict[str, Any] = self.session.run(self._residues)
        return found

    def push(
        self,
        sequence: int,
        *,
        incarnation: int = INCARNATION,
        origin: int = ORIGIN,
        behind: int | None = None,
        poison: bool = False,
    ) -> dict[str, int]:
        """Bucket -> what became of a step's push there, a column of the ledger.

        behind: as if it had pulled so many versions ago.  poison: the loss is not finite, for the last mini-batch.
        """
        batch = next(self._drawn)
        if poison:
            batch = [*batch[:-2], np.full_like(batch[-2], np.nan), batch[-1]]
        feed = dict(zip(self._graph.model.batch, batch, strict=True))
        feed[self._graph.request.fed] = self._graph.request.values((0, incarnation, sequence, origin))
        if behind is not None:
            versions = self._graph.model.versions
            live = self.session.run(versions)
            feed.update({tensor: live[name] - behind for name, tensor in versions.items()})
        fetched = self.session.run(self._graph.step, feed)
        verdicts = np.concatenate(fetched["outcomes"])[:, 0].tolist()
        return dict(zip(self._outcome_names(), verdicts, strict=True))

    def close(self, attempt: int, factor: float, *, incarnation: int = INCARNATION, members: int = 1) -> None:
        """Closes a round, or tries to."""
        rounds = self._graph.rounds
        assert rounds is not None
        request = rounds.request.values((0, incarnation, attempt, incarnation), members=members, factor=factor)
        self.session.run(rounds.close, {rounds.request.fed: request})

    def update(self, number: int) -> None:
        """One more: a push that is applied, in mode sync a whole round."""
        assert {*self.push(number).values()} == {PENDING if self._graph.rounds else APPLIED}
        if self._graph.rounds:
            self.close(number, factor=1.0)

    def _outcome_names(self) -> Iterator[str]:
        for ps in range(self._graph.plan.num_ps):
            yield from (bucket.name for bucket in self._graph.plan.on(ps))
            if ps == GLOBAL_STEP.ps:
                yield GLOBAL_STEP.name


def of_variables(buckets: list[tuple[Bucket, Any]]) -> dict[str, Any]:
    """Variable -> its entries, flat, from (bucket, its entries) of all its buckets."""
    found: dict[str, dict[int, Any]] = {}
    for bucket, entries in buckets:
        flat = np.reshape(entries, -1)
        for piece in bucket.pieces:
            own = flat[piece.offset : piece.offset + piece.size]
            found.setdefault(piece.variable, {}).update(zip(places(bucket, piece).tolist(), own, strict=True))
    return {name: np.array([entries[place] for place in sorted(entries)]) for name, entries in found.items()}


def places(bucket: Bucket, piece: Piece) -> Any:
    """Which entries of its variable a piece has, in the order of the bucket; int64 [size]."""
    numbers, row = np.arange(piece.size), math.prod(bucket.master_shape[1:])
    return piece.start + numbers // row * row * piece.stride + numbers % row
