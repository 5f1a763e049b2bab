"""What must hold of a simulated job, checked at each applied round and at its end.

Each round is applied to each bucket with the same gradients, one of each member, all computed of the variables of the
round before; a bucket has the value that follows from the rounds in it; the record of the coordinator has the parts
that the buckets have; each batch of a worker is in the variables once, and none is left out but for those that a
restore took back, a ps refused, or a killed worker had under way; each ledger balances; a job whose faults are over is
done, with all its steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psruntime.core.accounting.accounts import APPLIED, PENDING, STALE, is_balanced
from psruntime.core.members.view import Phase
from tests.simulation.round_records import odd_record
from tests.simulation.servers import BATCHES, PRIME, Bucket, Gradient, Servers, after_round, gradient_of

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Audit:
    """Of one cluster.  faults: what was wrong so far.  servers: the newest of each ps.

    rounds: how many rounds, or updates without rounds, were applied.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.faults: list[str] = []
        self.servers: dict[int, Servers] = {}
        self.rounds = 0
        self._cluster = cluster
        self._batches: dict[int, list[int]] = {}  # of each round, or update, in bucket 0
        self._undone: set[int] = set()  # batches of those that a restore took back, or that a ps refused

    def fault(self, what: str) -> None:
        self._cluster.simulation.note("WRONG", what)
        self.faults.append(what)

    def record(self, record: dict[str, Any]) -> None:
        """The coordinator has recorded something of the rounds."""

    def unbalanced(self, servers: Servers) -> list[str]:
        return [str(number) for number, bucket in servers.buckets.items() if not is_balanced(bucket.ledger)]

    def at_end(self) -> list[str]:
        """What is wrong once all have ended."""
        cluster = self._cluster
        if cluster.coordinator is None:
            return ["no coordinator was ever there"]
        state = cluster.coordinator.state
        if state.phase is not Phase.DONE:
            return [f"the job is {state.phase}: {state.reason}"]
        buckets = {n: bucket for servers in self.servers.values() for n, bucket in servers.buckets.items()}
        found = self._odd_end(buckets) + self._odd_batches()
        for number, bucket in buckets.items():
            if bucket.ledger[APPLIED] != sum(bucket.members.values()):
                found.append(
                    f"the ledger of bucket {number} has {bucket.ledger[APPLIED]} applied, not {bucket.members}"
                )
        for servers in self.servers.values():
            found += [f"the ledger of bucket {number} does not balance" for number in self.unbalanced(servers)]
        if cluster.folder.newest_step != buckets[0].steps and cluster.folder.fails_until_s == 0:
            found.append(f"the last checkpoint is of step {cluster.folder.newest_step}, not {buckets[0].steps}")
        return found

    def _odd_end(self, buckets: dict[int, Bucket]) -> list[str]:
        """What is wrong with the steps at the end."""
        raise NotImplementedError

    def _take_back(self, global_step: int) -> None:
        """Rounds, or updates, after this one are undone."""
        for step in [step for step in self._batches if step > global_step]:
            self._undone.update(self._batches.pop(step))

    def _odd_batches(self) -> list[str]:
        """Those that count twice, and those that were left out; with backup workers late ones are."""
        applied = [batch for batches in self._batches.values() for batch in batches]
        twice = sorted({batch for batch in applied if applied.count(batch) > 1})
        found = [f"batch {batch} is in the variables more than once" for batch in twice]
        drawn = {batch // BATCHES: 0 for batch in applied}
        for batch in applied:
            drawn[batch // BATCHES] = max(drawn[batch // BATCHES], batch)
        if not self._cluster.schedule.backup_workers:
            last_ones = self._cluster.schedule.pipeline - 1  # that may be under way when their process is killed
            ranges = [range(first * BATCHES, last - last_ones) for first, last in drawn.items()]
            left_out = {batch for each in ranges for batch in each} - self._undone
            found += [f"batch {batch} was left out" for batch in sorted(left_out.difference(applied))]
        return found


class RoundAudit(Audit):
    """Of mode sync."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._attempts: dict[int, dict[int, tuple[Gradient, ...]]] = {}  # attempt -> bucket -> gradients
        self._values: dict[int, dict[int, int]] = {}  # after each round: of each bucket
        self._recorded: dict[int, list[tuple[int, int]]] = {}  # round -> (worker, batch) of its parts
        self._records: list[dict[str, Any]] = []

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

    def restored(self, global_step: int, values: dict[int, tuple[int, int]]) -> None:
        """All variables are from a checkpoint; where ps and workers are new, attempts begin at 1 again."""
        values_alone = {number: value for number, (value, _) in values.items()}
        if self._values and self._values.get(global_step) != values_alone:
            self.fault(f"the checkpoint of step {global_step} has other values than there were")
        self._attempts = {}
        self._take_back(global_step)
        self._values = {step: kept for step, kept in self._values.items() if step < global_step}
        self._values[global_step] = values_alone

    def record(self, record: dict[str, Any]) -> None:
        self._records.append(record)
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

    def _odd_end(self, buckets: dict[int, Bucket]) -> list[str]:
        found, limit = [], self._cluster.schedule.rounds
        if {bucket.steps for bucket in buckets.values()} != {limit}:
            found.append(f"rounds in the buckets: { {n: b.steps for n, b in buckets.items()} }, {limit} were to be")
        faults = [*self._cluster.schedule.faults, *self._cluster.schedule.in_preparations]
        schedule = self._cluster.schedule
        if not schedule.backup_workers and (odd := odd_record(self._records, schedule.workers)):
            found.append(f"a record that no moves of the model give: {odd}")
        lost_ps0 = any((fault.kind, fault.name) == ("kill", "ps0") for fault in faults)
        if not lost_ps0 and set(self._recorded) != set(range(1, limit + 1)):
            found.append(f"rounds on record: {sorted(self._recorded)}, {limit} were to be")
        return found + [
            f"bucket {number} has pending={bucket.ledger[PENDING]}, though no round is open"
            for number, bucket in buckets.items()
            if bucket.ledger[PENDING]
        ]


class UpdateAudit(Audit):
    """Of the modes async and bounded."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._values: dict[int, dict[int, int]] = {}  # of each bucket, after each update that it ever had
        self._since_restore: dict[int, set[tuple[int, int]]] = {}  # of each bucket: (worker, batch) of its updates
        self._after: dict[int, int] = {}  # of each bucket: its value, by the updates

    def applied(self, number: int, bucket: Bucket, staleness: int, gradients: tuple[Gradient, ...]) -> None:
        """An update was applied to a bucket."""
        gradient = gradients[0]
        if number == 0:
            self.rounds += 1
            self._batches[bucket.steps] = [gradient.batch]
        push = gradient.worker, gradient.batch
        self._cluster.simulation.note("applied", f"bucket={number} step={bucket.steps}", push)
        pushes = self._since_restore.setdefault(number, set())
        if push in pushes:
            self.fault(f"bucket {number} has batch {gradient.batch} of worker {gradient.worker} twice")
        pushes.add(push)
        if gradient.value != gradient_of(gradient.worker, gradient.batch, gradient.pulled, number):
            self.fault(f"update {bucket.steps} of bucket {number} is not of what its worker pulled")
        before = self._after.get(number, bucket.value)
        if number in self._after and bucket.value != after_round(before, gradient.value):
            self.fault(f"bucket {number} has another value after update {bucket.steps} than the updates give")
        self._after[number] = bucket.value
        self._values.setdefault(number, {})[bucket.steps] = bucket.value
        bound, workers = self._cluster.schedule.bound, self._cluster.schedule.workers
        if bound is not None:
            most = (2 * bound + 1) * (workers - 1) + 2 * min(self._cluster.schedule.pipeline - 1, bound)
            if staleness > most:
                self.fault(f"an update of bucket {number} is {staleness} versions stale, of {most} at most")

    def refused(self, gradient: Gradient, column: int) -> None:
        """A bucket refused an update: it is too stale, or its worker was replaced."""
        self._undone.add(gradient.batch)
        schedule = self._cluster.schedule
        if column == STALE and schedule.bound is not None and not (schedule.faults or schedule.in_preparations):
            self.fault(f"batch {gradient.batch} is too stale, though nothing has failed")

    def restored(self, global_step: int, values: dict[int, tuple[int, int]]) -> None:
        """All variables are from a checkpoint."""
        for number, (value, steps) in values.items():
            if steps and self._values[number].get(steps) != value:
                self.fault(f"the checkpoint of step {global_step} has a value that bucket {number} never had")
        self._since_restore = {}
        self._after = {number: value for number, (value, _) in values.items()}
        self._take_back(global_step)

    def _odd_end(self, buckets: dict[int, Bucket]) -> list[str]:
        schedule = self._cluster.schedule
        most = schedule.rounds + schedule.workers * schedule.pipeline
        steps = buckets[0].steps
        found = [] if schedule.rounds <= steps <= most else [f"{steps} steps, of {schedule.rounds} to {most}"]
        if not [*schedule.faults, *schedule.in_preparations] and {b.steps for b in buckets.values()} != {steps}:
            found.append(f"updates in the buckets: { {n: b.steps for n, b in buckets.items()} }")
        return found
