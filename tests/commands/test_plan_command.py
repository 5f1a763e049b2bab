"""The plan command: what it shows agrees with the plan that a job would have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.plan import make_plan, report

ROOT = Path(__file__).parents[2]
COMPLAINT = "psruntime plan: --what-if must be numbers of ps from 1, with commas between them, got '1,x'"


def plan_command(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "psruntime", "plan", *flags]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_the_report_counts_buckets_bytes_and_tensors() -> None:
    specs = [VariableSpec(f"v{i}", (100,), "float32", group=1) for i in range(6)]
    specs += [
        VariableSpec("table", (200, 4), "float32", sparse=True),
        VariableSpec("mean", (50,), "float32", trainable=False),
    ]
    found = report(make_plan(specs, 2, 1 << 20, 1 << 20))
    table, packed = sorted(found.every_ps, key=lambda ps: ps.tensors, reverse=True)
    assert (table.buckets, table.tensors) == (1, 4 + 2)  # with header and outcomes
    assert (packed.buckets, packed.tensors) == (1, 2 + 2)
    assert {table.size_bytes, packed.size_bytes} == {3200, 2600} and found.balance == 3200 / 2900
    assert (found.buckets, found.tensors) == (2, 10)


@pytest.mark.long
def test_a_model_is_shown_for_several_numbers_of_ps() -> None:
    shown = plan_command("--model=psruntime.examples.wide_deep", "--ps=2", "--what-if=1", "--json")
    assert shown.returncode == 0, shown.stderr
    two, one = json.loads(shown.stdout)
    assert (two["ps"], one["ps"]) == (2, 1)
    pieces = [(piece["variable"], piece["start"]) for bucket in two["buckets"] for piece in bucket["pieces"]]
    assert len(set(pieces)) == len(pieces), "each once"
    assert {("wide/user", 0), ("wide/user", 1), ("deep/hidden_0/kernel", 0)} <= set(pieces), "a table is on both ps"
    held = [sum(ps["size_bytes"] for ps in plan["every_ps"]) for plan in (one, two)]
    assert held[0] <= held[1] <= 1.01 * held[0], "a table group may have a few rows more than its tables"


def test_what_is_wrong_is_said_in_one_line() -> None:
    shown = plan_command("--ps=2", "--what-if=1,x")
    assert shown.returncode == 2 and shown.stdout == ""
    assert (
        shown.stderr == "psruntime plan: --what-if must be numbers of ps from 1, with commas between them, got '1,x'\n"
    )
