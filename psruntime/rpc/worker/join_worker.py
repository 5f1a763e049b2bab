"""Joins a worker with all that belongs to its membership: its facts, its gate for mode bounded, its control."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from psruntime.core.members.messages import Answer, GraphsBuilt, WorkerStats
from psruntime.errors import PsRuntimeError
from psruntime.rpc.client.context import ClientContext
from psruntime.rpc.client.join import Registration
from psruntime.rpc.client.membership_client import MembershipClient
from psruntime.rpc.worker.step_gate import Gate
from psruntime.rpc.worker.worker_control import WorkerControl
from psruntime.rpc.worker.worker_facts import WorkerFacts


def join_worker(
    context: ClientContext,
    registration: Registration,
    stats: Callable[[str], WorkerStats],
    connect_timeout_s: float,
    at_exit: ExitStack,
    on_answer: Callable[[Answer], None],
    on_end: Callable[[PsRuntimeError], None] = lambda _: None,
    graphs: Callable[[], GraphsBuilt] = GraphsBuilt,
) -> tuple[WorkerControl, MembershipClient]:
    """Joins the job.  The caller ends the membership with `leave`; what else has to be closed is given to `at_exit`.

    stats, graphs: as WorkerFacts.  on_answer, on_end: as MembershipClient.

    Raises:
        As MembershipClient.start.
    """
    gate = Gate(context, registration.index)
    at_exit.callback(gate.close)

    def receive(answer: Answer) -> None:
        instructions = answer.instructions
        gate.space(instructions.report_every_s)
        gate.rebound(instructions.settings.bound)
        facts.instructed(answer.incarnation, instructions.pause_epoch)  # after the bound, by which steps begin then
        on_answer(answer)

    facts = WorkerFacts(stats, context.asked, graphs)
    membership = MembershipClient(context, registration, facts.beat, receive, on_end)
    control = WorkerControl(context, membership, facts, gate)
    membership.start(connect_timeout_s)
    return control, membership
