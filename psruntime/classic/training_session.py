"""`psruntime.MonitoredTrainingSession`: the session of a script that keeps its own graph and loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.arguments import USE_DEFAULT, StockArguments
from psruntime.classic.joining import ScriptPlace, counting_of, join_script
from psruntime.classic.script_session import ScriptSession

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
    coordinator: str = "",
    index: int | None = None,
    host: str = "",
    interface: str = "",
    connect_timeout_s: float | None = None,
    tls_ca: str = "",
    tls_cert: str = "",
    tls_key: str = "",
    token_file: str = "",
    log_format: str = "text",
    colocate_ps: bool = False,
    ps_arguments: Sequence[str] = (),
) -> ScriptSession:
    """Joins a job as worker `index`, and gives the session of a script that keeps its own graph and loop.

    It takes the arguments of `tf.compat.v1.train.MonitoredTrainingSession`, and returns a session that is used like
    the stock one: `with ... as session: while not session.should_stop(): session.run(train_op)`. Build the graph with
    `replica_device_setter` before. Start the ps with `python -m psruntime.ps`, in mode async or bounded; the
    script's own server is not used.

    A run is a step if its fetches reach an operation that counts the global step. Other runs, an evaluation for
    example, pass no gate and count for nothing. When the job drains, the next step raises `OutOfRangeError`, which
    ends a `with` block without an error, and `should_stop()` is true.

    Leaving the `with` block waits until all workers have left theirs, and until one that was lost has had a lease to
    come back. Then the chief's hooks write the last checkpoint and every process ends. An exception in the block leaves
    at once and does not hold up the others. A process can have one such session.

    Args:
        master: Accepted and without effect.
        is_chief: Accepted and without effect. The coordinator chooses the chief, and may choose another one later.
        checkpoint_dir: Folder where the chief saves and restores. The default saver writes on the chief's own disk, so
            with more than one machine the folder must be shared. It belongs to one live job, as does that of a
            `CheckpointSaverHook` among the hooks.
        scaffold: As in TensorFlow.
        hooks: Act on every worker; their `end` comes when it leaves its block.
        chief_only_hooks: Act on whichever worker is the chief; their `end` comes when all workers have stopped. A
            `CheckpointSaverHook` among `hooks` counts as one of these.
        save_checkpoint_secs: As in TensorFlow, in seconds.
        save_summaries_steps: As in TensorFlow, in global steps.
        save_summaries_secs: As in TensorFlow, in seconds.
        config: A `ConfigProto`; its `cluster_def` is replaced.
        stop_grace_period_secs: As in TensorFlow, in seconds.
        log_step_count_steps: As in TensorFlow, in global steps.
        max_wait_secs: How long to wait for a session, the first one and each after a failure, in seconds.
        save_checkpoint_steps: As in TensorFlow, in global steps.
        summary_dir: As in TensorFlow; None stands for `checkpoint_dir`.
        save_graph_def: As in TensorFlow.
        coordinator: Address of the coordinator, `host:port`, as ps 0 was given it; if empty, that of ps 0 in the
            cluster of `TF_CONFIG`, else 127.0.0.1:2222.
        index: Index of this worker, from 0; the same as in the graph's `worker_device`. None for that of `TF_CONFIG`,
            in whose cluster the chief is worker 0, and the other workers move up by one (`psruntime.cluster_task`).
        host: Address at which the ps reach this process; if empty, that of `TF_CONFIG`, else that of the route to the
            coordinator.
        interface: Network interface at which the ps reach TensorFlow's server; if empty, the one that owns `host`;
            `any` leaves the server open on all of them.
        connect_timeout_s: How long to try to reach the coordinator, in seconds. None stands for 60, and for
            `max_wait_secs` where `TF_CONFIG` says the place: its tasks wait for each other.
        tls_ca: File with the certificates of the CA (PEM); if empty, `PSRUNTIME_TLS_CA` of the environment.
        tls_cert: File with this process's certificate (PEM); if empty, `PSRUNTIME_TLS_CERT`.
        tls_key: File with its key (PEM); if empty, `PSRUNTIME_TLS_KEY`.
        token_file: File with the job's token; if empty, `PSRUNTIME_TOKEN_FILE`, or the token in `PSRUNTIME_TOKEN`.
        log_format: `text`, or `json` for one JSON object a line on stderr.
        colocate_ps: Whether this process starts a ps of its own, as its child, for a cluster of `TF_CONFIG` that has
            workers alone. Worker 0's address is the coordinator's. The ps ends with this process.
        ps_arguments: With `colocate_ps`, the settings of the job, as worker 0 gives them to `psruntime ps`, for example
            `["--mode=bounded", "--bound=4", "--insecure"]`; the other workers' are not looked at.

    Returns:
        The session of this worker, a `MonitoredSession`.

    Raises:
        SystemExit: The script or the job cannot go on. One line on stderr says why. The code is 0 if the job is done, 1
            if it failed, 2 for a mistake in the script, 75 if the job was stopped or this worker lost its membership,
            and 143 after a SIGTERM.
    """
    stock = StockArguments(
        checkpoint_dir or "", summary_dir or checkpoint_dir or "", scaffold or tf1.train.Scaffold(),
        tuple(hooks or ()), tuple(chief_only_hooks or ()), save_checkpoint_steps, save_checkpoint_secs,
        save_summaries_steps, save_summaries_secs, log_step_count_steps, save_graph_def, config,
        stop_grace_period_secs, max_wait_secs,
    )  # fmt: skip
    place = ScriptPlace(
        coordinator, index, host, interface, connect_timeout_s, tls_ca, tls_cert, tls_key, token_file, log_format,
        colocate_ps, ps_arguments,
    )  # fmt: skip
    return join_script(NAME, place, stock, counting_of(NAME))
