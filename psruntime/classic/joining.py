"""A script joins a job: its graph is checked, then its place found, then its session put together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf1
from tensorflow.core.protobuf.config_pb2 import ConfigProto

from psruntime.classic.arguments import StockArguments
from psruntime.classic.counting import StepCounting
from psruntime.classic.hooks import ChiefOnly, StepHook, Tally, Wrapped
from psruntime.classic.identity import identity_of_script
from psruntime.classic.member import OwnedFolders, ScriptMember
from psruntime.classic.placement import check_placement, outside_scopes
from psruntime.classic.prepare import ScaffoldPreparation, ScriptSessions, remember_checkpoints
from psruntime.classic.ps_beside import PsBeside
from psruntime.classic.script_session import ScriptSession, end_script
from psruntime.config import JobConfig
from psruntime.config.process import ProcessConfig, SecurityConfig
from psruntime.core.plan.identity import ModelIdentity
from psruntime.errors import PsRuntimeError, UsageError
from psruntime.graph.embedding.dynamic_table import noted
from psruntime.graph.session.session import ViewSessionCreator, open_session
from psruntime.launch.tf_config import place_of_script
from psruntime.observe.log import Log
from psruntime.rpc.wire.security import load_security

CONNECT_TIMEOUT_S = 60.0
_TOKENS = b"sync_token_q"  # the name that tf.train.SyncReplicasOptimizer gives its queue


@dataclass(frozen=True)
class ScriptPlace:
    """Where a script finds its job, and how; each as MonitoredTrainingSession takes it."""

    coordinator: str = ""
    index: int | None = None
    host: str = ""
    interface: str = ""
    connect_timeout_s: float | None = None
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    log_format: str = "text"
    colocate_ps: bool = False
    ps_arguments: Sequence[str] = ()


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """A UsageError ends the script with one line, which begins with `name`."""
    try:
        yield
    except UsageError as error:
        sys.stderr.write(f"{name}: {error}\n")
        raise SystemExit(error.exit_code) from error


def counting_of(name: str, given: Any = None) -> StepCounting:
    """How the steps of the default graph are counted, looked at before anybody is reached.

    given: what the script names as its global step; None: nothing.
    """
    with refusing(name):
        if tf1.executing_eagerly():
            raise UsageError("there is no graph: call tf.disable_v2_behavior() at the beginning of the script")
        graph = tf1.get_default_graph()
        if graph.finalized:
            raise UsageError("the graph is finalized; the session needs to add to it, and finalizes it then")
        if tables := noted():
            raise UsageError(
                f"the graph reads dynamic table {min(tables)} by psruntime.embedding, which needs a job with --model; "
                "use tf.get_variable and tf.nn.embedding_lookup"
            )
        _refuse_sync_replicas(graph)
        with outside_scopes():
            return StepCounting(graph, given)


def _refuse_sync_replicas(graph: Any) -> None:
    """Its updates are made by a thread of the chief, out of sight: no run of the script counts one."""
    queues = (op for op in graph.get_operations() if "Queue" in op.type and "shared_name" in op.node_def.attr)
    if any(op.get_attr("shared_name") == _TOKENS for op in queues):
        raise UsageError(
            "the script trains by tf.train.SyncReplicasOptimizer, whose updates no job can count; for synchronous "
            "training write the model as a psruntime.ModelSpec, with the optimizer inside it, and give ps 0 "
            "--mode sync; or leave it out for mode async or bounded (docs/scripts.md)"
        )


def join_script(
    name: str,
    place: ScriptPlace,
    stock: StockArguments,
    counting: StepCounting,
    serves: Callable[[], bool] | None = None,
) -> ScriptSession:
    """Joins the job, and gives the session of the script, whose graph is the default one.

    name: what the script calls.  serves: whether the chief's hooks act, for a session that has services; None: they act
    in each run of the script.

    Raises:
        SystemExit: the script or the job cannot go on; one line on stderr says why.
    """
    with refusing(name):
        if not isinstance(place.index, int | None):
            raise UsageError(f"index must be an integer, got {place.index!r}")
        if place.ps_arguments and not place.colocate_ps:
            raise UsageError("ps_arguments is for a ps that this script starts: give colocate_ps=True, or leave it out")
        if stock.config is not None and not isinstance(stock.config, ConfigProto):
            raise UsageError(f"config must be a tf.ConfigProto, got {type(stock.config).__name__}")
        found = place_of_script(place.coordinator, place.index, place.host, place.colocate_ps)
        timeout_s = place.connect_timeout_s
        if timeout_s is None:
            timeout_s = stock.max_wait_secs if found.task else CONNECT_TIMEOUT_S
        where = ProcessConfig(
            found.index,
            found.coordinator,
            found.host,
            interface=place.interface,
            connect_timeout_s=timeout_s,
            log_format=place.log_format,
        )
        files = {name: getattr(place, name) for name in ("tls_ca", "tls_cert", "tls_key", "token_file")}
        security = load_security(SecurityConfig.of(files))
        beside = None
        if found.task and place.colocate_ps:
            beside = PsBeside(name, found.task, where, files, place.ps_arguments)
    member = ScriptMember(where, security, Log("worker", found.index, place.log_format))
    if beside:
        beside.serves(member)
    try:
        return _open(member, found.index, stock, counting, serves)
    except PsRuntimeError as error:
        end_script(member, error)
    except BaseException as error:
        member.fail(error)
        raise


def _open(
    member: ScriptMember,
    index: int,
    stock: StockArguments,
    counting: StepCounting,
    serves: Callable[[], bool] | None,
) -> ScriptSession:
    graph, job = tf1.get_default_graph(), member.fetch_job()
    check_placement(graph, job.ps, index)
    if job.train_steps is not None:
        counting.require_room(job.train_steps - 1)
    tally, folders = Tally(), OwnedFolders(stock.folders(), job, member.coordinator, member.log)
    identity = identity_of_script(graph, counting.counters)
    member.join(job, lambda: tally.steps, identity, folders)
    return session_of(member, job, identity, stock, counting, tally, serves)


def session_of(
    member: ScriptMember,
    job: JobConfig,
    identity: ModelIdentity,
    stock: StockArguments,
    counting: StepCounting,
    tally: Tally,
    serves: Callable[[], bool] | None = None,
) -> ScriptSession:
    """The session of a script that has joined; its graph is the default one.  serves: as join_script."""
    graph, joined, log = tf1.get_default_graph(), member.joined, member.log
    control_plane, index, folders = joined.control_plane, joined.server.index, joined.folders
    opens = partial(open_session, joined.server, graph, config=stock.config)

    def make() -> tuple[ScaffoldPreparation, ViewSessionCreator]:
        preparation = ScaffoldPreparation(
            stock.scaffold, counting, stock.checkpoint_dir, job, index, log, folders, identity
        )
        return preparation, ViewSessionCreator(
            graph, control_plane, preparation, log, opens, preparation.initialise
        )  # fmt: skip

    sessions = ScriptSessions(stock.scaffold, index, make, lambda: member.patience(stock.max_wait_secs))
    step_hook = StepHook(counting, sessions, control_plane, tally, log)

    def become_chief() -> None:
        remember_checkpoints(stock.scaffold.saver, stock.checkpoint_dir, log)

    def acts() -> bool:
        return control_plane.is_chief() and (serves is None or serves())

    chief_hooks = [ChiefOnly(hook, acts, become_chief, log) for hook in stock.chief_hooks(folders)]
    worker_hooks = [Wrapped(hook, log) for hook in stock.worker_hooks()]
    return ScriptSession(
        member, sessions, step_hook, chief_hooks, worker_hooks, stock.stop_grace_period_secs, serves is not None
    )
