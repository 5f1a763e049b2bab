"""The stock arguments of MonitoredTrainingSession, the hooks that stock makes of them, and the event files of these.

Event files of a chief-only hook: opened when it first writes, so that a worker that is never chief has none.

Stock hooks take their writer in `begin`, and TensorFlow's opens its file and writes the graph at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config.values import whole_path
from psruntime.graph.base.checkpoint_reader import is_pattern, readable
from psruntime.graph.checkpoint.listing import is_remote

_CACHE = tf1.summary.FileWriterCache


class LateWriter:
    """Stands for the FileWriter of a folder; the first use of any of its methods opens it.

    opens: gives that of a folder; by default the one that all in this process share.
    """

    def __init__(self, folder: str, opens: Callable[[str], Any] | None = None) -> None:
        self._folder = folder
        self._opens = opens
        self._writer: Any = None

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def __getattr__(self, name: str) -> Any:
        self._writer = self._writer or (self._opens or _CACHE.get)(self._folder)
        return getattr(self._writer, name)

    def flush(self) -> None:
        """Brings what was written to the disk, if anything was."""
        if self._writer is not None:
            self._writer.flush()


@contextmanager
def late_writers() -> Iterator[list[LateWriter]]:
    """Within it TensorFlow's cache of writers makes LateWriters; these are yielded."""
    get, given = _CACHE.__dict__["get"], list[LateWriter]()

    def give(folder: str) -> LateWriter:
        given.append(LateWriter(folder))
        return given[-1]

    _CACHE.get = give
    try:
        yield given
    finally:
        _CACHE.get = get


USE_DEFAULT = object()  # not given; None turns a hook off
SAVE_CHECKPOINT_SECS = 600
SAVE_SUMMARIES_STEPS = 100


@dataclass(frozen=True)
class StockArguments:
    """As tf.train.MonitoredTrainingSession takes them; a folder that is not given is empty."""

    checkpoint_dir: str
    summary_dir: str
    scaffold: Any
    hooks: tuple[Any, ...]
    chief_only_hooks: tuple[Any, ...]
    save_checkpoint_steps: Any
    save_checkpoint_secs: Any
    save_summaries_steps: Any
    save_summaries_secs: Any
    log_step_count_steps: int | None
    save_graph_def: bool
    config: Any
    stop_grace_period_secs: float
    max_wait_secs: float

    def folders(self) -> list[str]:
        """Folders that the script saves in."""
        savers = [hook for hook in (*self.chief_only_hooks, *self.hooks) if _saves(hook)]
        own = [self.checkpoint_dir] if any(self._checkpoint_choice) else []
        return [*own, *(hook._checkpoint_dir for hook in savers)]

    @property
    def _checkpoint_choice(self) -> tuple[Any, Any]:
        """(steps, seconds) between the checkpoints of `checkpoint_dir`; both None: the script saves none there."""
        return _choice(self.save_checkpoint_steps, self.save_checkpoint_secs, (None, SAVE_CHECKPOINT_SECS))

    def chief_hooks(self, listener: Any) -> list[Any]:
        """Hooks that only the chief acts with, in stock's order.  listener: of each that saves."""
        hooks = list(self.chief_only_hooks)
        if self.summary_dir and self.log_step_count_steps and self.log_step_count_steps > 0:
            hooks.append(
                tf1.train.StepCounterHook(output_dir=self.summary_dir, every_n_steps=self.log_step_count_steps)
            )
        steps, secs = _choice(self.save_summaries_steps, self.save_summaries_secs, (SAVE_SUMMARIES_STEPS, None))
        if self.summary_dir and (steps or secs):
            hooks.append(
                tf1.train.SummarySaverHook(
                    scaffold=self.scaffold, save_steps=steps, save_secs=secs, output_dir=self.summary_dir
                )
            )
        steps, secs = self._checkpoint_choice
        if self.checkpoint_dir and (steps or secs):
            hooks.append(
                tf1.train.CheckpointSaverHook(
                    self.checkpoint_dir, save_steps=steps, save_secs=secs, scaffold=self.scaffold,
                    save_graph_def=self.save_graph_def,
                )
            )  # fmt: skip
        hooks += [hook for hook in self.hooks if _saves(hook)]
        for hook in filter(_saves, hooks):
            hook._listeners = [listener, *hook._listeners]
            _take_literally(hook)
        return hooks

    def worker_hooks(self) -> list[Any]:
        """Hooks that every worker acts with.  Two workers that save into one folder would undo each other's list."""
        return [hook for hook in self.hooks if not _saves(hook)]


def _saves(hook: Any) -> bool:
    return isinstance(hook, tf1.train.CheckpointSaverHook)


def _take_literally(hook: Any) -> None:
    """Gives a hook another path to its folder where TensorFlow takes the name for a pattern, by which its Saver would
    not find the old checkpoints that it removes."""
    folder = whole_path(hook._checkpoint_dir)
    if is_pattern(folder) and not is_remote(folder):
        os.makedirs(folder, exist_ok=True)
        hook._checkpoint_dir = readable(folder)
        hook._save_path = os.path.join(hook._checkpoint_dir, os.path.basename(hook._save_path))
        if hook._saver:
            list_by_name(hook._saver)


def list_by_name(saver: Any) -> None:
    """Lets a Saver list its checkpoints without their folder, of which it may have a path of this process alone."""
    saver._save_relative_paths = True


def _choice(steps: Any, secs: Any, defaults: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """(every so many steps, every so many seconds); one that is given turns the other's default off."""
    if steps is USE_DEFAULT and secs is USE_DEFAULT:
        return defaults
    steps = None if steps is USE_DEFAULT else steps
    secs = None if secs is USE_DEFAULT else secs
    return (steps if steps and steps > 0 else None), (secs if secs and secs > 0 else None)
