"""What must hold of a simulated job, checked at each applied round and at its end.

Each round is applied to each bucket with the same gradients, one of each member, all computed of the variables of the
round before; a bucket has the value that follows from the rounds in it; the record of the coordinator has the parts
that the buckets have; each batch of a worker is in the variables once, and none is left out; each ledger balances; a
job whose faults are over is done, with all its steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psruntime.core.accounting.accounts import APPLIED, PENDING, is_balanced
from psruntime.core.members.view import Phase
from tests.simulation.servers import BATCHES, PRIME, Bucket, Gradient, Servers, after_round, gradient_of

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Audit:
    """Of one cluster.  faults: what was wrong so far.  servers: the newest of each ps.  rounds: that were applied."""

    def __init__(self, cluster: Cluster) -> None:
        self.faults: list[str] = []
        self.servers: dict[int, Servers] = {}
        self._cluster = cluster
        self._attempts: dict[int, dict[int, tuple[Gradient, ...]]] = {}  # attempt -> bucket -> gradients
        self._values: dict[int, dict[int, int]] = {}  # after each round: of each bucket
        self._recorded: dict[int, list[tuple[int, int]]] = {}  # round -> (worker, batch) of its parts
        self._batches: dict[int, list[int]] = {}  # of each round in bucket 0
        self._undone: set[int] = set()  # batches of rounds that a restore took back
        self.rounds = 0

    def fault(self, what: str) -> None:
        self._cluster.simulation.note("WRONG", what)
        self.faults.append(what)

    def applied(self, number: int, bucket: Bucket, attempt: int, gradients: tuple[Gradient, ...]) -> None:
        """A round was applied to a bucket."""
        if number == 0:
            self.rounds += 1
            self._batches[bucket.steps] = [gradient.batch for gradient in gradients]
        who = [(g.worker, g.incarnation, g.batch) for g in gradients]
        self._cluster.simulation.note("applied", f"bucket={number} attempt={attempt} step={bucket.steps}", len(who))
        if len({worker for worker, _, _ in who}) != len(who):
            self.fault(f"attempt {attempt} has a member twice in bucket {number}: {who}")
        before = self._values.get(bucket.steps - 1, {})
        pulled = tuple(before[each] for each in sorted(before))
        right = [gradient_of(g.worker, g.batch, pulled, number) for g in gradients]
        if [g.value for g in gradients] != right:
            self.fault(
                f"round {bucket.steps} of bucket {number} is not of the variables after round {bucket.steps - 1}"
            )
        value = after_round(before.get(number, 0), sum(right) % PRIME)
        if bucket.value != value:
            self.fault(f"bucket {number} has another value after round {bucket.steps} than the joint batch gives")
        self._values.setdefault(bucket.steps, {})[number] = value
        for other, others in self._attempts.setdefault(attempt, {}).items():
            if [(g.worker, g.incarnation, g.batch) for g in others] != who:
                self.fault(f"attempt {attempt} is of {who} in bucket {number}, of others in bucket {other}")
        self._attempts[attempt][number] = gradients

    def restored(self, global_step: int, values: dict[int, int]) -> None:
        """All variables are from a checkpoint; where ps and workers are new, attempts begin at 1 again."""
        if self._values and self._values.get(global_step) != values:
            self.fault(f"the checkpoint of step {global_step} has other values than there were")
        self._attempts = {}
        for step in [step for step in self._batches if step > global_step]:
            self._undone.update(self._batches.pop(step))
        self._values = {step: kept for step, kept in self._values.items() if step < global_step}
        self._values[global_step] = dict(values)

    def record(self, record: dict[str, Any]) -> None:
        """The coordinator has recorded something of the rounds."""
        if record["record"] == "prepared":
            self._recorded = {n: parts for n, parts in self._recorded.items() if n <= record["global_step"]}
        if record["record"] != "round":
            return
        attempt = record["attempt"]
        parts = sorted((part["worker"], part["batch"]) for part in record["parts"])
        self._recorded[record["round"]] = parts
        for number, gradients in self._attempts.get(attempt, {}).items():
            if sorted((g.worker, g.batch % BATCHES) for g in gradients) != parts:
                self.fault(f"the record of attempt {attempt} is not what bucket {number} has: {parts}, {gradients}")

    def unbalanced(self, servers: Servers) -> list[str]:
        return [str(number) for number, bucket in servers.buckets.items() if not is_balanced(bucket.ledger)]

    def _odd_batches(self) -> list[str]:
        """Those that count twice, and those that were left out; with backup workers late ones are."""
        applied = [batch for batches in self._batches.values() for batch in batches]
        found = [
            f"batch {b} is in the variables more than once"
            for b in sorted({b for b in applied if applied.count(b) > 1})
        ]
        drawn = {batch // BATCHES: 0 for batch in applied}
        for batch in applied:
            drawn[batch // BATCHES] = max(drawn[batch // BATCHES], batch)
        if not self._cluster.schedule.backup_workers:
            left_out = {b for first, last in drawn.items() for b in range(first * BATCHES, last)} - self._undone
            found += [f"batch {b} was left out" for b in sorted(left_out.difference(applied))]
        return found

    def at_end(self) -> list[str]:
        """What is wrong once all have ended."""
        cluster = self._cluster
        if cluster.coordinator is None:
            return ["no coordinator was ever there"]
        state, limit = cluster.coordinator.state, cluster.schedule.rounds
        if state.phase is not Phase.DONE:
            return [f"the job is {state.phase}: {state.reason}"]
        found = []
        buckets = {n: bucket for servers in self.servers.values() for n, bucket in servers.buckets.items()}
        if {bucket.steps for bucket in buckets.values()} != {limit}:
            found.append(f"rounds in the buckets: { {n: b.steps for n, b in buckets.items()} }, {limit} were to be")
        faults = [*cluster.schedule.faults, *cluster.schedule.in_preparations]
        found += self._odd_batches()
        lost_ps0 = any((fault.kind, fault.name) == ("kill", "ps0") for fault in faults)
        if not lost_ps0 and set(self._recorded) != set(range(1, limit + 1)):
            found.append(f"rounds on record: {sorted(self._recorded)}, {limit} were to be")
        for number, bucket in buckets.items():
            if bucket.ledger[PENDING]:
                found.append(f"bucket {number} has pending={bucket.ledger[PENDING]}, though no round is open")
            if bucket.ledger[APPLIED] != sum(bucket.members.values()):
                found.append(
                    f"the ledger of bucket {number} has {bucket.ledger[APPLIED]} applied, not {bucket.members}"
                )
        for servers in self.servers.values():
            found += [f"the ledger of bucket {number} does not balance" for number in self.unbalanced(servers)]
        if cluster.folder.newest_step != limit and cluster.folder.fails_until_s == 0:
            found.append(f"the last checkpoint is of step {cluster.folder.newest_step}, not {limit}")
        return found
