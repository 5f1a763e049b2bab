"""A worker's membership with all that belongs to it: its facts, its gate for mode bounded, its control."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from psruntime.core.members.messages import Answer, GraphsBuilt, WorkerStats
from psruntime.errors import PsRuntimeError
from psruntime.rpc.client.coordinator_client import ClientContext
from psruntime.rpc.client.join import Registration
from psruntime.rpc.client.membership_client import MembershipClient
from psruntime.rpc.worker.step_gate import Gate
from psruntime.rpc.worker.worker_control import WorkerControl
from psruntime.rpc.worker.worker_facts import WorkerFacts


def worker_membership(
    context: ClientContext,
    registration: Registration,
    stats: Callable[[str], WorkerStats],
    at_exit: ExitStack,
    on_answer: Callable[[Answer], None],
    on_end: Callable[[PsRuntimeError], None] = lambda _: None,
    graphs: Callable[[], GraphsBuilt] = GraphsBuilt,
) -> tuple[WorkerControl, MembershipClient]:
    """The control of a worker, and its membership, which the caller begins with `start` and ends with `leave`.

    at_exit: is given what else has to be closed.

    stats, graphs: as WorkerFacts.  on_answer, on_end: as MembershipClient.
    """
    facts, gate = WorkerFacts(stats, context.asked, graphs), Gate(context, registration.index)
    at_exit.callback(gate.close)

    def receive(answer: Answer) -> None:
        instructions = answer.instructions
        gate.space(instructions.report_every_s)
        gate.rebound(instructions.settings.bound)
        facts.instructed(answer.incarnation, instructions.pause_epoch)  # after the bound, by which steps begin then
        on_answer(answer)

    membership = MembershipClient(context, registration, facts.beat, receive, on_end)
    return WorkerControl(context, membership, facts, gate), membership
