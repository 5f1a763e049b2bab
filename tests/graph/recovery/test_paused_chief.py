"""A chief that is paused anywhere in its preparation changes nothing that its successor has prepared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.members.messages import Assignment
from psruntime.core.plan.plan import make_plan
from psruntime.errors import ReplacedError
from psruntime.graph.base.ancestors import ancestors
from psruntime.graph.checkpoint.checkpoints import Checkpoints
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import learn_specs
from psruntime.graph.recovery.prepare import Preparation
from psruntime.graph.recovery.replicas import Replicas
from psruntime.graph.step.build import build_training
from psruntime.graph.store.write_fence import WriteFence
from psruntime.model import Context
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
CASES = [(mode, source) for source in SOURCES for mode in MODES]
QUICK = [("async", "replica"), ("sync", "initial values")]
OPTIMIZED = ("async", "checkpoint, live ps")  # played with the rewriting of graphs, as users have it
REST = [case for case in CASES if case not in (*QUICK, OPTIMIZED)]


class Chief:
    """The graph of worker 0, and its preparation."""

    def __init__(self, cluster: LocalCluster, job: JobConfig) -> None:
        inputs = InputStream(MODEL, Context("train", 0, 1, 8, "", 3))
        plan = make_plan(learn_specs(MODEL, inputs, "train"), job.ps, job.slice_bytes, job.pack_bytes)
        self.cluster = cluster
        self.graph = build_training(MODEL, inputs, plan, job, 0)
        inputs.close()
        checkpoints = Checkpoints(self.graph, job.checkpoint_dir, job.keep, 0)
        replicas = Replicas(self.graph) if job.replicate_every else None
        self._preparation = Preparation(self.graph, checkpoints, replicas, 0, job, lambda *_, **__: None)
        self.replicas = replicas
        stores = [*self.graph.model.stores.values(), self.graph.global_step]
        self._values = [v for store in stores for v in self.graph.values_of(store)]
        counters = [v for store in stores for v in store.counters]
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


@pytest.mark.parametrize("case", long_but([*QUICK, OPTIMIZED], CASES, nightly=REST), ids=str)
def test_a_paused_chief_changes_nothing(case: tuple[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if case != OPTIMIZED:
        request.getfixturevalue("graphs_as_built")
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


class Recorded(WriteFence):
    """Remembers what is run behind it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.was_run: list[Any] = []

    def run(self, session: Any, incarnation: int, operations: Any, feed: Any = None, *more: Any) -> Any:
        self.was_run += tf1.nest.flatten(operations)
        return super().run(session, incarnation, operations, feed, *more)


def looks(operation: Any) -> bool:
    """Whether an operation waits for the fence, also when all that can be fed is fed."""
    return any(each.type == "Assert" for each in ancestors([operation], lambda op: op.type.startswith("Placeholder")))


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize("mode", MODES)
def test_every_write_of_a_chief_waits_for_the_fence(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psruntime.graph.step.setup.WriteFence", Recorded)
    settings = {"mode": mode, "slice_bytes": 64, "replicate_every": 3, "checkpoint_dir": str(tmp_path)}
    cluster = LocalCluster(2)
    chief = Chief(cluster, JobConfig(**{"ps": 2, "max_workers": cluster.max_workers, **settings}))
    fence, replicas = chief.graph.fence, chief.replicas
    assert isinstance(fence, Recorded) and replicas
    with chief.session() as session:
        chief.prepare(session, INCARNATION)  # from initial values
        cluster.forget(1)
        chief.prepare(session, INCARNATION)  # from a checkpoint
        replicas.begin(session, INCARNATION)
        replicas.send(session, INCARNATION)
        replicas.finish(session, INCARNATION)
        cluster.forget(1)
        chief.prepare(session, INCARNATION)  # from a replica
    writes = {op for op in ancestors(fence.was_run) if op.type in WRITES}
    assert {op.type for op in writes} >= {"AssignVariableOp", "ResourceScatterUpdate"} and len(writes) > 50
    assert not [op.name for op in writes if not looks(op)]
