"""Checkpoints: logical variables under the model's own names, so that any plan reads what any plan wrote.

A variable `w` is saved as `w`, whole; the optimizer's slots as stock TensorFlow names them, `w/Momentum`,
`w/Adam`, `w/Adam_1`; what the optimizer keeps once per bucket (Adam's powers of beta) as `w/beta1_power`.
The global step is `global_step`.  `tf.train.load_checkpoint` reads all of it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf1
from tensorflow.python.training.saving import saveable_object  # has no public name; Saver takes it as an argument

from psruntime.core.plan import Bucket
from psruntime.errors import CheckpointError
from psruntime.graph.devices import worker_cpu
from psruntime.graph.round_store import APPLIED_ATTEMPT
from psruntime.graph.session import LOST_SESSION, first_line
from psruntime.graph.training import TrainGraph

_NAME = "model.ckpt"


class Checkpoints:
    """Writes, finds and restores the checkpoints of one folder.  Without a folder it has none and writes none."""

    def __init__(self, graph: TrainGraph, folder: str, keep: int, index: int) -> None:
        self.folder = folder
        with graph.graph.as_default(), tf1.device(worker_cpu(index)):
            saveables = _saveables(graph)
            self._expected = {s.name: (list(s.shape), s.specs[0].dtype.base_dtype) for s in saveables}
            self._saver = tf1.train.Saver(saveables, max_to_keep=None, save_relative_paths=True)
            self._rounds = [r.look() for r in graph.rounds.stores] if graph.rounds else []
            self._global_step = graph.global_step.master.read_value()[0]
        self._keep = keep

    def check_folder(self) -> None:
        """Makes the folder and proves that it can be written.

        Raises:
            CheckpointError: it cannot.
        """
        if not self.folder:
            return
        probe = os.path.join(self.folder, f".probe-{os.getpid()}")
        try:
            os.makedirs(self.folder, exist_ok=True)
            with open(probe, "wb"):
                pass
            os.remove(probe)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {self.folder} cannot be written: {error.strerror}; give another --checkpoint-dir"
            ) from error

    def latest(self) -> str | None:
        """The newest checkpoint of the folder, as the prefix of its files; None in an empty folder.

        Raises:
            CheckpointError: the folder's list names a file that is not there.
        """
        state = tf1.train.get_checkpoint_state(self.folder) if self.folder else None
        if state is None or not state.model_checkpoint_path:
            return None
        path = str(state.model_checkpoint_path)
        if not tf1.train.checkpoint_exists(path):
            raise CheckpointError(
                f"checkpoint {path} is missing but listed in {self.folder}/checkpoint; "
                "bring its files back, or give another --checkpoint-dir"
            )
        return path

    def save(self, session: Any, global_step: int) -> str | None:
        """Writes a checkpoint; returns its prefix, or None without a folder.

        Raises:
            CheckpointError: it could not be written, or in mode sync it would not be exactly the parameters of round
                `global_step`.  The ones before it are untouched.
        """
        if not self.folder:
            return None
        try:
            before = self._cut(session)
            path: str = self._saver.save(
                session,
                os.path.join(self.folder, _NAME),
                global_step=global_step,
                write_meta_graph=False,
                write_state=False,
            )
            if self._rounds and not before == self._cut(session) == ([before[0][0]] * len(self._rounds), global_step):
                _remove(path)  # this process was paused, and another is the chief meanwhile
                raise CheckpointError(f"checkpoint {global_step} was not kept: rounds were closed while it was written")
            self._publish(path)
        except LOST_SESSION:
            raise
        except (tf1.errors.OpError, OSError, ValueError) as error:
            reason = first_line(error)
            raise CheckpointError(f"checkpoint {global_step} was not written to {self.folder}: {reason}") from error
        return path

    def _cut(self, session: Any) -> tuple[list[int], int]:
        """(last applied attempt of every bucket, global step); attempts in mode sync only."""
        books, global_step = session.run([self._rounds, self._global_step])
        return [int(row[APPLIED_ATTEMPT]) for row in books], int(global_step)

    def _publish(self, path: str) -> None:
        """Makes a complete checkpoint the newest, and removes the oldest ones, those of earlier chiefs too."""
        state = tf1.train.get_checkpoint_state(self.folder)
        older = [p for p in (state.all_model_checkpoint_paths if state else []) if p != path]
        paths = [*older, path]
        kept = [json.dumps(os.path.basename(p)) for p in paths[-self._keep :]]
        lines = [f"model_checkpoint_path: {kept[-1]}", *(f"all_model_checkpoint_paths: {name}" for name in kept)]
        unfinished = os.path.join(self.folder, f".checkpoint-{os.getpid()}")
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(unfinished, os.path.join(self.folder, "checkpoint"))
        for old in paths[: -self._keep]:
            _remove(old)

    def restore(self, session: Any, path: str) -> None:
        """Restores masters, optimizer variables and global step from `path`.

        Raises:
            CheckpointError: it cannot be read, or lacks a variable or has it in another shape or dtype;
                names them.
        """
        try:
            self._check_fits(path)
            self._saver.restore(session, path)
        except LOST_SESSION:
            raise
        except (tf1.errors.OpError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be read: {first_line(error)}; bring its files back, or give another "
                "--checkpoint-dir"
            ) from error

    def _check_fits(self, path: str) -> None:
        reader = tf1.train.load_checkpoint(path)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        bad = []
        for name, (shape, dtype) in self._expected.items():
            if name not in shapes:
                bad.append(f"{name} is missing there, {_described(shape, dtype)} in the model")
            elif (shapes[name], dtypes[name]) != (shape, dtype):
                there = _described(shapes[name], dtypes[name])
                bad.append(f"{name} {there} there, {_described(shape, dtype)} in the model")
        if bad:
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            raise CheckpointError(
                f"checkpoint {path} does not fit the model: {'; '.join(bad[:3])}{more}; "
                "give the model that it was written with, or another --checkpoint-dir"
            )


def _remove(path: str) -> None:
    """Removes the files of a checkpoint."""
    for file in glob.glob(glob.escape(path) + ".*"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(file)


def _described(shape: Sequence[int], dtype: Any) -> str:
    return f"{dtype.name}{list(shape)}"


class _Whole(saveable_object.SaveableObject):  # type: ignore[misc]
    """One logical tensor of `shape` that lies in `parts`: flat slices in this order, or one table."""

    def __init__(self, name: str, shape: Sequence[int], parts: list[Any]) -> None:
        self.shape = tuple(shape)
        self._parts = parts
        flat = [tf1.identity(part.read_value()) for part in parts]
        whole = tf1.reshape(flat[0] if len(flat) == 1 else tf1.concat(flat, axis=0), self.shape)
        super().__init__(whole, [saveable_object.SaveSpec(whole, "", name, whole.dtype)], name)

    def restore(self, restored_tensors: list[Any], restored_shapes: Any) -> Any:  # noqa: ARG002
        sizes = [part.shape.num_elements() for part in self._parts]
        pieces = tf1.split(tf1.reshape(restored_tensors[0], [-1]), sizes)
        return tf1.group(
            *[
                part.assign(tf1.reshape(piece, part.shape), read_value=False)
                for part, piece in zip(self._parts, pieces, strict=True)
            ]
        )


class _Shared(saveable_object.SaveableObject):  # type: ignore[misc]
    """One scalar that every bucket of a variable has its own copy of; the first bucket's is saved."""

    def __init__(self, name: str, copies: list[Any]) -> None:
        self.shape = tuple(copies[0].shape.as_list())
        self._copies = copies
        value = tf1.identity(copies[0].read_value())
        super().__init__(value, [saveable_object.SaveSpec(value, "", name, value.dtype)], name)

    def restore(self, restored_tensors: list[Any], restored_shapes: Any) -> Any:  # noqa: ARG002
        return tf1.group(*[copy.assign(restored_tensors[0], read_value=False) for copy in self._copies])


def _saveables(graph: TrainGraph) -> list[Any]:
    """Everything that a checkpoint holds, as logical tensors."""
    saveables: list[Any] = [_Whole("global_step", [], [graph.global_step.master])]
    for spec in graph.plan.specs:
        buckets = graph.plan.of(spec.name)
        stores = graph.model.stores
        saveables.append(_Whole(spec.name, spec.shape, [stores[b.name].master for b in buckets]))
        for suffix, parts in _optimizer_parts(graph, buckets).items():
            name = f"{spec.name}/{suffix}"
            is_slot = tuple(parts[0].shape.as_list()) == buckets[0].master_shape
            saveables.append(_Whole(name, spec.shape, parts) if is_slot else _Shared(name, parts))
    return saveables


def _optimizer_parts(graph: TrainGraph, buckets: list[Bucket]) -> dict[str, list[Any]]:
    """Name within the variable (`Momentum`, `beta1_power`) -> the variables of that name, one a bucket."""
    parts: dict[str, list[Any]] = {}
    for bucket in buckets:
        for variable in graph.optimizer_variables.get(bucket.name, []):
            parts.setdefault(variable.op.name.rsplit("/", 1)[-1], []).append(variable)
    return parts
