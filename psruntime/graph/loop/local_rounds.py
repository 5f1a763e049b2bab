"""A worker's part in local rounds: it trains by itself, and contributes what that has changed.

What it has kept is pushed again, as in other rounds, when the attempt became void.  In another view it trains anew.
"""

from __future__ import annotations

from psruntime.core.members.messages import Assignment
from psruntime.core.rounds.round_messages import Action, Pushed
from psruntime.graph.base.types import Session
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.loop.local_training import LocalTraining, Trained
from psruntime.graph.loop.round_runs import RoundRuns, are_accepted


class LocalRounds:
    """Of one worker, whose batches are those of `inputs`.  trained: for the newest round."""

    def __init__(self, training: LocalTraining, inputs: InputStream) -> None:
        self.trained: Trained | None = None
        self._training, self._inputs = training, inputs
        self._kept_for: tuple[Assignment, int] | None = None  # and the first attempt of the round

    def contribute(self, session: Session, assignment: Assignment, action: Action, runs: RoundRuns) -> Pushed | None:
        """Does what the turn says; None: the next turn says what follows."""
        if self._kept_for != (assignment, action.opened):
            self._kept_for, self.trained = None, self._training.train(session, assignment, action.round)
            if self.trained is None:
                return None
            self._kept_for = assignment, action.opened
        assert self.trained is not None
        weight = self.trained.weight
        if not are_accepted(runs.contribute(session, assignment, action, scale=weight)):
            return None
        return Pushed(action.round, action.attempt, self._inputs.drawn - 1, weight, apart=True)
