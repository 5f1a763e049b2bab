"""docs/observing.md has every field of `psruntime status --json`, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from psruntime.config import JobConfig
from psruntime.core.members.job_status import Departure, JobStatus, PsTraffic, WorkerTraffic
from psruntime.core.members.messages import (
    BytesMoved,
    GpuMemory,
    HeldOut,
    LeaveKind,
    Measurements,
    PsStats,
    RowCounts,
    WorkerStats,
)
from psruntime.core.shards.shard_messages import ShardsStatus
from psruntime.core.steering.commands import SteeringStatus
from psruntime.observe.render import as_json
from tests.observe.test_render import JOB, PS, STATUS, WORKER
from tests.support import docs

MOVED = BytesMoved(1, 2)
FULL_PS = replace(
    PS, ps_stats=PsStats(dropped={"stale": 1}, received_of={3: 4}, moved=MOVED, row_counts=(RowCounts("ids", 8),)),
    ps_traffic=PsTraffic(1.0, 2.0, 0.5),
)  # fmt: skip
FULL_WORKER = replace(
    WORKER, worker_stats=WorkerStats(moved=MOVED, staleness_counts=(1,), gpus=(GpuMemory(0, "a GPU", 3, 4),)),
    worker_traffic=WorkerTraffic(1.0, 2.0),
)  # fmt: skip
FULL = replace(
    STATUS, members=(FULL_PS, FULL_WORKER), unanswered={3: 1}, shards=ShardsStatus(1, 2, 3, 0),
    departures=(Departure(PS.role, 1, "00", LeaveKind.ASKED, "why", 1.0),), steering=SteeringStatus(pending=("save",)),
    saved_step=400, saved_ago_s=3.5, held_out=Measurements(HeldOut(1, {"loss": 0.5}), HeldOut(1, {"loss": 0.5})),
)  # fmt: skip
BY_KEY = {
    "unanswered": "WORKER",
    "ps_stats.dropped": "CAUSE",
    "ps_stats.received_of": "WORKER",
    **{f"held_out.{which}.values": "METRIC" for which in ("last", "best")},
}  # what the keys are
MAY_BE_NULL = {"shards", "ps_stats.moved", "worker_stats.moved"}  # documented as a whole, too


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Of all plain values, as the document writes them."""
    if isinstance(value, dict):
        for key, each in value.items():
            name = BY_KEY.get(path, key)
            yield from paths(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for each in value:
            yield from paths(each, f"{path}[]")
    else:
        yield path


def documented(check: str) -> set[str]:
    return {name for row in docs.table("docs/observing.md", check) for name in re.findall("`(.+?)`", row[0])}


def shown(status: JobStatus, job: JobConfig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(as_json(status, job)))
    return found


def test_the_fields_of_the_job_are_those_of_the_document() -> None:
    facts = shown(FULL, JOB)
    del facts["ps"], facts["workers"]
    settings = facts.pop("job")
    assert set(settings) == {field.name for field in fields(JobConfig)}
    others = {"job.SETTING", "job.max_bound", "ps[]", "workers[]"}
    assert set(paths(facts)) | others | (MAY_BE_NULL & {"shards"}) == documented("status fields")


def test_the_fields_of_a_member_are_those_of_the_document() -> None:
    facts = shown(FULL, JOB)
    (ps,), (worker,) = facts["ps"], facts["workers"]
    assert set(ps) == set(worker)
    absent = {name for name in ps if name.endswith(("_stats", "_traffic"))}
    found = (set(paths(ps)) | set(paths(worker))) - absent
    assert found | (MAY_BE_NULL - {"shards"}) == documented("member fields")


def test_the_newest_checkpoint_is_told() -> None:
    facts = shown(FULL, JOB)
    assert (facts["saved_step"], facts["saved_ago_s"]) == (400, 3.5)
    assert (shown(STATUS, JOB)["saved_step"], shown(STATUS, JOB)["saved_ago_s"]) == (None, None)
