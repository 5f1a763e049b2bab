"""Values from checkpoints of other models: of a warm start, and of initial values that model_fn takes from them.

The chief reads them in chunks, also for tables and for the parts of large variables, so none is whole in a process.
The variables of model_fn note where their values are (graph/model/pretrained.py).

A warm start is as `tf.estimator.WarmStartSettings`, but for two things: variables that are not trained, such as moving
averages, are read too, and one that the checkpoint does not have keeps its own initial value.  Slots of optimizers and
the global step are not read.  Values overwrite the initial ones whenever these are assigned: at the start, and once
more where a ps was lost before there was a checkpoint.  Of a folder the chief reads the checkpoint that is newest then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.recovery.checkpoint_names import EntryKind, described
from psruntime.errors import CheckpointError, PassingError, UsageError, some
from psruntime.faults import Place, fate_of, first_line
from psruntime.graph.base.checkpoint_reader import contents_of, readable
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.base.types import Session
from psruntime.graph.checkpoint.entries import CheckpointPart, parts_of
from psruntime.graph.checkpoint.listing import CheckpointList, newest_step
from psruntime.graph.checkpoint.transfer import Reader, Source
from psruntime.graph.model.pretrained import Pretrained
from psruntime.graph.step.train_graph import TrainGraph


class PretrainedValues:
    """The pretrained values of a model, for worker `index` as the chief; its operations are in the current graph."""

    def __init__(self, graph: TrainGraph, index: int) -> None:
        self._sources: dict[str, dict[str, Source]] = {}  # checkpoint -> variable -> where its value is
        pretrained = graph.model.captured.pretrained
        for name, each in pretrained.items():
            self._sources.setdefault(each.path, {})[name] = Source(each.path, each.tensor)
        own = [part for part in parts_of(graph) if part.entry.kind is EntryKind.VARIABLE] if pretrained else []
        parts = [_of_variable(graph, part, pretrained[part.of]) for part in own if part.of in pretrained]
        with tf1.name_scope("pretrained"):
            self._readers = {
                path: Reader([part for part in parts if part.of in sources], index, graph.fence, keeps=True)
                for path, sources in self._sources.items()
            }

    def assign(self, session: Session, every_ps: Collection[int], incarnation: int) -> list[dict[str, object]]:
        """Overwrites the variables on these ps; returns facts of each checkpoint for the log.

        Raises:
            UserCodeError, PassingError: one cannot be read, as the table of faults has it.
            ReplacedError: a ps no longer admits the incarnation.
        """
        facts: list[dict[str, object]] = []
        for path, reader in self._readers.items():
            sources = self._sources[path]
            try:
                there = {name: source._replace(path=readable(path)) for name, source in sources.items()}
                reader.read(session, there, False, every_ps, incarnation)
            except LOST_SESSION:
                raise
            except (tf1.errors.OpError, OSError) as error:
                text = f"init_from_checkpoint of model_fn, {path}: {first_line(error)}"
                raise fate_of(error, Place.INITIAL, text) from error
            facts.append({"path": path, "variables": len(sources), "names": some(sorted(sources), MOST_NAMES)})
        return facts


def _of_variable(graph: TrainGraph, part: CheckpointPart, given: Pretrained) -> CheckpointPart:
    """The same, as a part of the tensor of the variable's initial value, under the name of the variable.

    A part of a partitioner has its offset in the whole, unless the tensor is that part alone.
    """
    entry = replace(part.entry, name=part.of)
    partition = graph.model.captured.partitions.get(part.of)
    if partition is None or given.slice_spec:
        return replace(part, entry=entry)
    shape = next(spec.shape for spec in graph.plan.specs if spec.name == part.of)
    begin = tuple(here - there for here, there in zip(part.begin, partition.offset, strict=True))
    return replace(part, entry=replace(entry, shape=shape), begin=begin)


MOST_NAMES = 5  # in a line


@dataclass(frozen=True)
class _Found:
    """sources: of the entries that are read.  left: names of the model's variables that keep their initial values."""

    path: str
    parts: list[CheckpointPart]
    sources: dict[str, Source]
    left: list[str]


class WarmStart:
    """The warm start of a job, in worker `index`.  The checkpoint is opened when its values are needed: while the job
    trains it may be removed or replaced."""

    def __init__(self, job: JobConfig, index: int, log: Callable[..., None]) -> None:
        self._job, self._index, self._log = job, index, log

    def check(self, graph: TrainGraph, has_begun: Callable[[], bool] = lambda: False) -> None:
        """Checks the setting before this worker joins.  A job with a checkpoint of its own continues from that.

        has_begun: called when there is a mistake; if the job may have begun, the mistake is logged instead of raised.

        Raises:
            UsageError: the checkpoint lacks the variables, or does not fit the model.
            PassingError: this machine cannot read it at the moment.
        """
        if newest_step(self._job.checkpoint_dir) is not None:
            return
        try:
            _find(graph, self._job, Place.WARM_START)
        except (UsageError, PassingError) as error:
            if not has_begun():
                raise
            self._log("cannot_warm_start", reason=error)

    def open(self, graph: TrainGraph) -> _WarmValues:
        """The values that the checkpoint has now; its operations are added to the graph.

        Raises:
            CheckpointError: there is none, or it does not fit the model.
            UserCodeError, PassingError: it cannot be read, as the table of faults has it.
        """
        try:
            found = _find(graph, self._job, Place.INITIAL)
        except UsageError as error:
            raise CheckpointError(f"the variables cannot begin with a warm start: {error}") from error
        return _WarmValues(graph, found, self._index)


class _WarmValues:
    """Assigns the values of the checkpoint; its operations are in the training graph."""

    def __init__(self, graph: TrainGraph, found: _Found, index: int) -> None:
        self._found = found
        with graph.graph.as_default(), tf1.name_scope("warm_start"):
            self._reader = Reader(found.parts, index, graph.fence, keeps=True)

    def assign(self, session: Session, every_ps: Collection[int], incarnation: int) -> dict[str, object]:
        """Overwrites the initial values of these ps; returns facts for the log.

        The chief reads for all ps, which need not see the checkpoint.

        Raises:
            UserCodeError, PassingError: it cannot be read, as the table of faults has it.
            ReplacedError: a ps no longer admits the incarnation.
        """
        found = self._found
        try:
            sources = {name: Source(readable(each.path), each.name) for name, each in found.sources.items()}
            self._reader.read(session, sources, False, every_ps, incarnation)
        except LOST_SESSION:
            raise
        except (tf1.errors.OpError, OSError) as error:
            raise fate_of(error, Place.INITIAL, f"warm start from {found.path}: {first_line(error)}") from error
        return {"path": found.path, "variables": len(found.sources), "names": some(sorted(found.sources), MOST_NAMES),
                "left": some(found.left, MOST_NAMES) or "none"}  # fmt: skip


def _find(graph: TrainGraph, job: JobConfig, place: Place) -> _Found:
    with _reading(job.warm_start, place):
        path = _path_of(job.warm_start)
        there = contents_of(path)
    matches, earlier = job.warm_start_pattern.match, job.earlier_names
    parts = [part for part in parts_of(graph) if part.entry.kind is EntryKind.VARIABLE]
    dynamic = {spec.name for spec in graph.plan.specs if spec.dynamic}
    entries = {part.entry.name: part for part in parts}
    if unknown := sorted(set(earlier) - set(entries)):
        raise UsageError(f"--warm-start-names: the model has no variable {some(unknown, MOST_NAMES)}")
    sources: dict[str, Source] = {}
    for name, part in entries.items():
        old = earlier.get(name, name)
        if not matches(name) or (old not in there and name not in earlier):
            continue
        if old not in there:
            raise UsageError(f"--warm-start-names: {path} has no {old}, for {name}")
        if part.of in dynamic:
            raise UsageError(
                f"--warm-start: {name} is a dynamic table, which a warm start cannot take; leave it out by "
                "--warm-start-vars"
            )
        ours = part.entry.shape, part.entry.dtype
        if there[old] != ours:
            raise UsageError(
                f"--warm-start: {path} has {old} as {described(there[old])}, and the model has {name} as "
                f"{described(ours)}; leave it out by --warm-start-vars"
            )
        sources[name] = Source(path, old)
    if not sources:
        of_pattern = f" that --warm-start-vars '{job.warm_start_vars}' matches" if job.warm_start_vars else ""
        raise UsageError(
            f"--warm-start: {path} has no variable of the model{of_pattern}; the model has "
            f"{some(sorted(entries), MOST_NAMES)}"
        )
    chosen = [part for part in parts if part.entry.name in sources]
    return _Found(path, chosen, sources, sorted(set(entries) - set(sources)))


def _path_of(given: str) -> str:
    """The checkpoint of a setting: the prefix of its files, or a folder, whose newest one it is."""
    if _is_checkpoint(given) and not tf1.gfile.IsDirectory(given):
        return given
    try:
        newest = CheckpointList(given).newest()
    except CheckpointError as error:
        raise UsageError(f"--warm-start: {error}") from error
    if newest is None:
        raise UsageError(f"--warm-start {given} is no checkpoint, nor a folder that has one")
    return newest


@contextmanager
def _reading(given: str, place: Place) -> Iterator[None]:
    """Raises a failure to read inside as the error that the table of faults names at this place."""
    try:
        yield
    except (tf1.errors.OpError, ValueError, OSError) as error:
        raise fate_of(error, place, f"--warm-start {given} cannot be read: {first_line(error)}") from error


def _is_checkpoint(given: str) -> bool:
    try:
        return bool(tf1.train.checkpoint_exists(readable(given)))
    except OSError:  # of a folder that is not there
        return False
