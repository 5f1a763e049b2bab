"""`psruntime.MonitoredTrainingSession`: the session of a script that keeps its own graph and loop."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.arguments import USE_DEFAULT, StockArguments
from psruntime.classic.counting import StepCounting
from psruntime.classic.hooks import ChiefOnly, StepHook, Tally, Wrapped
from psruntime.classic.member import ScriptMember
from psruntime.classic.placement import check_placement, outside_scopes
from psruntime.classic.prepare import ScaffoldPreparation, remember_checkpoints
from psruntime.classic.script_session import ScriptSession, end_script
from psruntime.classic.sessions import ScriptSessions
from psruntime.config import DEFAULT_COORDINATOR, ProcessConfig, SecurityConfig
from psruntime.errors import PsRuntimeError, UsageError
from psruntime.graph.loop.session import ViewSessionCreator
from psruntime.observe.log import Log
from psruntime.rpc.security.credentials import load_security

NAME = "psruntime.MonitoredTrainingSession"


def MonitoredTrainingSession(
    master: str = "",  # noqa: ARG001
    is_chief: bool = True,  # noqa: ARG001
    checkpoint_dir: str | None = None,
    scaffold: Any = None,
    hooks: Any = None,
    chief_only_hooks: Any = None,
    save_checkpoint_secs: Any = USE_DEFAULT,
    save_summaries_steps: Any = USE_DEFAULT,
    save_summaries_secs: Any = USE_DEFAULT,
    config: Any = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: Any = USE_DEFAULT,
    summary_dir: str | None = None,
    save_graph_def: bool = True,
    *,
    coordinator: str = DEFAULT_COORDINATOR,
    index: int,
    host: str = "",
    connect_timeout_s: float = 60.0,
    tls_ca: str = "",
    tls_cert: str = "",
    tls_key: str = "",
    token_file: str = "",
) -> ScriptSession:
    """Stock `tf.train.MonitoredTrainingSession` on a psruntime cluster: this process joins the job as worker `index`.

    The script keeps its graph, built with `replica_device_setter`, its hooks and its loop.  The ps are started by
    `python -m psruntime.ps`; the stock server of the script is not used, this function starts one of its own.

    The updates are the script's own operations: what they do is what stock TensorFlow does.  There is no ledger, no
    version and no staleness guard on the ps.  What the script gets: workers and ps that may come, go and come back
    at other addresses; leases; in mode bounded the gate, so no step starts more than `bound` steps ahead of the
    slowest worker; recovery from a lost ps, worker or chief in seconds; a start without 30 s polls; the status
    command; and an end for every process.  Modes async and bounded.

    A run is a step if its fetches reach an operation that counts the global step.  Other runs, an evaluation for
    example, pass no gate and count for nothing.  When the job drains, the next step raises OutOfRangeError, which
    ends a `with` block without an error, and `should_stop()` is true.

    Leaving the `with` block is the worker's rest: it waits until all workers have left theirs, and one that was lost
    has had a lease to come back; then the chief's hooks write the last checkpoint and everybody ends.  An exception
    in the block leaves at once and does not hold up the others.  A process has one such session.

    Args:
        master, is_chief: accepted and without effect; the coordinator says who is chief, and that may change.
        checkpoint_dir: where the chief saves and restores.  The default saver writes on the chief's own disk; with
            more than one machine the folder has to be shared.
        hooks: act on every worker; their `end` comes when it leaves its block.
        chief_only_hooks: act on whichever worker is the chief; their `end` comes when all workers have stopped.  A
            CheckpointSaverHook among `hooks` counts as one of these.
        config: a ConfigProto; its cluster_def is replaced.
        max_wait_secs: how long a session is waited for, the first and each after a failure.
        coordinator: `host:port`, as ps 0 was given it.
        index: of this worker, from 0; the one in the graph's worker_device.
        host: address at which the ps reach this process; empty: that of the route to the coordinator.
        connect_timeout_s: how long to try to reach the coordinator.
        tls_ca, tls_cert, tls_key, token_file: as the flags of psruntime.worker; from the environment, as there, if
            they are empty.
        The others are those of tf.train.MonitoredTrainingSession.

    Raises:
        SystemExit: the script or the job cannot go on.  One line on stderr says why; the code is 0 if the job is
            done, 1 if it failed, 2 for a mistake in the script, 75 if this worker lost its place.
    """
    stock = StockArguments(
        checkpoint_dir or "", summary_dir or checkpoint_dir or "", scaffold or tf1.train.Scaffold(),
        tuple(hooks or ()), tuple(chief_only_hooks or ()), save_checkpoint_steps, save_checkpoint_secs,
        save_summaries_steps, save_summaries_secs, log_step_count_steps, save_graph_def, config,
        stop_grace_period_secs, max_wait_secs,
    )  # fmt: skip
    try:
        if not isinstance(index, int):
            raise UsageError(f"index must be an integer, got {index!r}")
        where = ProcessConfig(index, coordinator, host, connect_timeout_s=connect_timeout_s)
        files = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key, "token_file": token_file}
        security = load_security(SecurityConfig.of(files))
        counting = _count_steps()
    except UsageError as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        raise SystemExit(error.exit_code) from error
    member = ScriptMember(where, security, Log("worker", index))
    try:
        return _open(member, index, stock, counting)
    except PsRuntimeError as error:
        end_script(member, error)
    except BaseException as error:
        member.fail(error)
        raise


def _count_steps() -> StepCounting:
    """Looks at the user's graph before anybody is reached."""
    if tf1.executing_eagerly():
        raise UsageError("there is no graph: call tf.disable_v2_behavior() at the beginning of the script")
    graph = tf1.get_default_graph()
    if graph.finalized:
        raise UsageError("the graph is finalized; the session needs to add to it, and finalizes it then")
    with outside_scopes():
        return StepCounting(graph)


def _open(member: ScriptMember, index: int, stock: StockArguments, counting: StepCounting) -> ScriptSession:
    graph, log, job = tf1.get_default_graph(), member.log, member.learn()
    check_placement(graph, job.ps, index)
    tally = Tally()
    member.join(lambda: tally.steps)

    def make() -> ViewSessionCreator:
        preparation = ScaffoldPreparation(
            stock.scaffold, counting, stock.checkpoint_dir, job.ps, job.max_workers, index, log
        )
        return ViewSessionCreator(
            member.server, graph, member.control_plane, preparation, log, preparation.initialise, stock.config
        )  # fmt: skip

    sessions = ScriptSessions(stock.scaffold, index, make, lambda: member.patience(stock.max_wait_secs))
    step_hook = StepHook(counting, sessions, member.control_plane, tally, log)

    def become_chief() -> None:
        remember_checkpoints(stock.scaffold.saver, stock.checkpoint_dir, log)

    of_the_chief = [ChiefOnly(hook, member.control_plane, become_chief, log) for hook in stock.of_the_chief()]
    of_everybody = [Wrapped(hook, log) for hook in stock.of_everybody()]
    return ScriptSession(member, sessions, step_hook, of_the_chief, of_everybody, stock.stop_grace_period_secs)
