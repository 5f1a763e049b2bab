"""A user's script in a cluster of this process."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.counting import StepCounting
from psruntime.classic.identity import identity_of_script
from psruntime.classic.member import OwnedFolders
from psruntime.classic.placement import check_placement, place_rest
from psruntime.classic.prepare import ScaffoldPreparation
from psruntime.config import JobConfig
from psruntime.core.members.messages import Assignment
from tests.support.local_cluster import INCARNATION, LocalCluster


@dataclass
class Script:
    """A user's graph over two ps, with everything that MonitoredTrainingSession adds to it."""

    cluster: LocalCluster
    folder: str
    scaffold: dict[str, Any] = field(default_factory=dict)  # init_op as what makes it
    name: str = "w"
    file_format: Any = tf1.train.SaverDef.V2
    size: int = 3  # of the first variable
    variable: dict[str, Any] = field(default_factory=dict)  # arguments of get_variable for it
    rate: float = 1.0
    coordinator: str = "127.0.0.1:2222"
    lease_s: float = 10.0
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph = tf1.Graph()
        with self.graph.as_default():
            pieces = {name: piece() if name == "init_op" else piece for name, piece in self.scaffold.items()}
            self.free = tf1.data.make_one_shot_iterator(tf1.data.Dataset.range(100)).get_next() + 1
            with tf1.device(tf1.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:0")):
                self.w = tf1.get_variable(self.name, [self.size], initializer=tf1.ones_initializer(), **self.variable)
                self.v = tf1.get_variable("v", [2], initializer=tf1.ones_initializer(), use_resource=True)
                self.local = tf1.get_local_variable("local", [1], initializer=tf1.ones_initializer())
                loss = tf1.reduce_sum(self.w) + tf1.reduce_sum(self.v)
                step = tf1.train.get_or_create_global_step()
                self.train = tf1.train.GradientDescentOptimizer(self.rate).minimize(loss, global_step=step)
            self.saver = tf1.train.Saver(write_version=self.file_format)
            check_placement(self.graph, 2, 0)
            scaffold = tf1.train.Scaffold(saver=self.saver, **pieces)
            job = JobConfig(ps=2, max_workers=self.cluster.max_workers, lease_s=self.lease_s)
            counting = StepCounting(self.graph)
            self.folders = OwnedFolders([self.folder], job, self.coordinator, self.log)
            identity = identity_of_script(self.graph, counting.counters)
            self.preparation = ScaffoldPreparation(
                scaffold, counting, self.folder, job, 0, self.log, self.folders, identity
            )
            scaffold.finalize()
            self.preparation.guard_writes()
            place_rest(self.graph, 0)

    def log(self, event: str, **facts: Any) -> None:
        self.events.append((event, facts))

    def session(self) -> Any:
        return self.cluster.session(self.graph)

    def prepare(self, incarnation: int = INCARNATION) -> int:
        with self.session() as session:
            step = self.preparation.run(session, Assignment(self.cluster.view, incarnation, prepare=True)).global_step
            self.preparation.require(session)
            self.preparation.initialise(session)
            return step

    def values(self) -> list[float]:
        with self.session() as session:
            return [float(values[0]) for values in session.run([self.w, self.v])]

    def succeed(self, incarnation: int) -> list[float]:
        """Another chief prepares, and trains.  Returns the values."""
        self.cluster.fence({0: incarnation})
        self.prepare(incarnation)
        self.step()
        return self.values()

    def step(self, save: bool = False) -> None:
        with self.session() as session:
            session.run(self.train)
            if save:
                self.saver.save(session, os.path.join(self.folder, "model.ckpt"), global_step=1)

    def end(self) -> None:
        """The job of this script is over."""
        self.folders.end_membership(is_over=True)
