"""A chief that is paused anywhere in its preparation changes nothing that its successor has prepared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.members.messages import Assignment
from psruntime.core.plan.plan import make_plan
from psruntime.errors import ReplacedError
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.checkpoint.checkpoints import Checkpoints
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import record_specs
from psruntime.graph.recovery.prepare import Preparation
from psruntime.graph.recovery.replicas import Replicas
from psruntime.graph.step.build import build_training
from psruntime.model import Context, Model
from tests.graph.model.test_non_trainable import MODEL as WITH_MOVING_AVERAGES
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import INCARNATION, LocalCluster, linear_model, train
from tests.support.paused import Paused
from tests.support.selection import long_but

MODEL = linear_model(OPTIMIZERS["adam"])
SUCCESSOR = INCARNATION + 1
MODES = ("async", "sync")
WRITES = {"AssignVariableOp", "AssignAddVariableOp", "ResourceScatterUpdate", "ResourceStridedSliceAssign"}
SOURCES = {  # of what is prepared: settings of the job, steps before, the ps that are lost
    "initial values": ({}, 0, (0, 1)),
    "checkpoint": ({"save_steps": 2}, 4, (0, 1)),
    "checkpoint, live ps": ({"save_steps": 2}, 4, (1,)),
    "replica": ({"replicate_every": 3}, 5, (1,)),
}
OPTIMISED = ("async", "checkpoint, live ps")
CASES = [
    pytest.param(case, marks=[pytest.mark.optimised] if case == OPTIMISED else []) for case in product(MODES, SOURCES)
]


class Chief:
    """The graph of worker 0, and its preparation."""

    def __init__(self, cluster: LocalCluster, job: JobConfig, model: Model = MODEL) -> None:
        inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
        plan = make_plan(record_specs(model, inputs, "train"), job.ps, *job.plan_sizes)
        self.cluster = cluster
        self.graph = build_training(model, inputs, plan, job, 0)
        inputs.close()
        checkpoints = Checkpoints(self.graph, job.checkpoint_dir, job.keep, 0)
        replicas = Replicas(self.graph) if job.replicate_every else None
        self.told: list[tuple[str, bool]] = []  # what was prepared, and whether it came from a replica

        def log(event: str, **facts: Any) -> None:
            self.told.append((event, "replica" in facts))

        self._preparation = Preparation(self.graph, checkpoints, replicas, 0, job, log)
        self.replicas = replicas
        stores = [*self.graph.model.stores.values(), self.graph.global_step]
        self._values = [v for store in stores for v in self.graph.values_of(store)]
        counters = [v for ps in range(job.ps) for section in self.graph.sections_on(ps) for v in section.counters]
        flags = [variable for control in self.graph.controls for variable in (control.prepared, control.bytes_held)]
        flags += [self.graph.model.ps_copies.stamp, *self.graph.model.ps_copies.variables.values()]
        flags += [note for ps in range(job.ps) for note in replicas.notes_on(ps)] if replicas else []
        with self.graph.graph.as_default():
            self._spoil = [v.assign(tf1.zeros_like(v.read_value()) + 7, read_value=False) for v in self._values]
            self._held = {v.op.name: v.read_value() for v in (*self._values, *counters, *flags)}

    def prepare(self, session: Any, incarnation: int) -> None:
        self._preparation.run(session, Assignment(self.cluster.view, incarnation, prepare=True))

    def succeed(self) -> dict[str, Any]:
        """The successor prepares, and trains: nothing is as anybody would restore it.  Returns all that is held."""
        self.cluster.fence({0: SUCCESSOR})
        with self.session() as session:
            self.prepare(session, SUCCESSOR)
            session.run(self._spoil)
        return self.held()

    def held(self) -> dict[str, Any]:
        with self.session() as session:
            found: dict[str, Any] = session.run(self._held)
        return found

    @contextmanager
    def session(self) -> Iterator[Any]:
        session = self.cluster.session(self.graph.graph)
        yield session
        session.close()


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_paused_chief_changes_nothing(case: tuple[str, str], tmp_path: Path) -> None:
    mode, source = case
    settings, steps, lost = SOURCES[source]
    settings = {"mode": mode, "slice_bytes": 64, **settings}
    if "save_steps" in settings:
        settings["checkpoint_dir"] = str(tmp_path)
    cluster = LocalCluster(2)
    if steps:
        train(cluster, MODEL, steps, **settings)
    chief = Chief(cluster, JobConfig(**{"ps": 2, "max_workers": cluster.max_workers, **settings}))
    for at in count(1):
        for ps in lost:
            cluster.forget(ps)
        cluster.fence({0: INCARNATION})
        with chief.session() as session:
            paused = Paused(session, at, chief.succeed)
            with suppress(ReplacedError):
                chief.prepare(paused, INCARNATION)
        if not paused.was:
            break
        for name, value in chief.held().items():
            np.testing.assert_array_equal(value, paused.found[name], err_msg=f"{name}, run {at}")
    assert at > 5


class Recorded:
    """A session that remembers what is run in it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.was_run: list[Any] = []

    def run(self, fetches: Any, *more: Any) -> Any:
        self.was_run += tf1.nest.flatten(fetches)
        return self._session.run(fetches, *more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def is_on_ps(write: Any) -> bool:
    """Whether it writes what the ps hold: not the worker's copies, and not the checkpoint's, which nobody restores."""
    held = write.inputs[0].op
    return held.device.startswith("/job:ps") and b"snapshot" not in held.get_attr("shared_name")


def looks(write: Any) -> bool:
    """Whether a write waits for the fence of its own ps, also when all that can be fed is fed."""
    before = ancestors([write], lambda op: op.type.startswith("Placeholder"))
    return any(op.type == "Assert" and op.device == write.inputs[0].op.device for op in before)


@pytest.mark.parametrize("mode", long_but(["sync"], MODES))
def test_every_write_of_a_chief_waits_for_the_fence(mode: str, tmp_path: Path) -> None:
    settings = {"mode": mode, "slice_bytes": 64, "replicate_every": 3, "checkpoint_dir": str(tmp_path)}
    cluster = LocalCluster(2)
    job = JobConfig(**{"ps": 2, "max_workers": cluster.max_workers, **settings})
    chief = Chief(cluster, job, WITH_MOVING_AVERAGES)
    copies, replicas = chief.graph.model.worker_copies, chief.replicas
    assert copies.changed and replicas
    with chief.session() as session:
        recorded = Recorded(session)
        chief.prepare(recorded, INCARNATION)
        copies.take(recorded)
        copies.write_back(partial(chief.graph.fence.run, recorded, INCARNATION))
        with pytest.raises(tf1.errors.InvalidArgumentError, match="writer_"):
            copies.write_back(session.run)  # names no writer
        cluster.forget(1)
        chief.prepare(recorded, INCARNATION)
        replicas.begin(recorded, INCARNATION)
        replicas.send(recorded, INCARNATION)
        replicas.finish(recorded, INCARNATION)
        cluster.forget(1)
        chief.prepare(recorded, INCARNATION)
    assert chief.told == [("initialised", False), ("restored", False), ("restored", True)]
    writes = {op for op in ancestors(recorded.was_run) if op.type in WRITES and is_on_ps(op)}
    assert {op.type for op in writes} >= {"AssignVariableOp", "ResourceScatterUpdate"} and len(writes) > 50
    assert not [op.name for op in writes if not looks(op)]
