"""What settings of a job need of each other: each rule of the table refuses a job, and names both settings and why."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from psruntime.config import JobConfig, job
from psruntime.config.job import ORDERS, RULES, Case, Order, Rule
from psruntime.config.job_settings import JobSettings
from psruntime.config.schedule import LOCAL
from psruntime.config.settings import settings_of
from psruntime.errors import UsageError

SETTINGS = {setting.name: setting for setting in settings_of(JobConfig)}
SAMPLES = {  # a value of those settings of which a rule names none, other than the default
    "bound": 2, "max_staleness": 3, "staleness_lr": "inverse", "pipeline": 2, "backup_workers": 1, "replicate_every": 9,
    "wire_error_feedback": "on", "top_k": 0.1, "schedule": "async:5, sync", "epochs": 2, "batch_policy": "throughput",
    "wire": "float16", "delta_every": 10, "trace_steps": "1:9", "keep_best": "loss", "warm_start_vars": "a",
    "warm_start_names": "a=b", "checkpoint_dir": "/c", "warm_start": "/w", "eval_every": 10,
    "patience": 3,
}  # fmt: skip


def value_in(case: Case) -> Any:
    if case == Case("schedule", (LOCAL,)):
        return "local:5, sync"
    return case.values[0] if case.values else SAMPLES[case.name]


def value_outside(case: Case) -> Any:
    default = SETTINGS[case.name].default
    choices = SETTINGS[case.name].metadata["choices"] or (default, SAMPLES.get(case.name))
    return next(value for value in choices if value not in case.values) if case.values else default


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.given} {rule.other}")
def test_each_rule_refuses_a_job_and_no_other(rule: Rule) -> None:
    given, inside, outside = value_in(rule.given), value_in(rule.other), value_outside(rule.other)
    wrong, right = (outside, inside) if rule.needs else (inside, outside)
    with patch.object(job, "RULES", (rule,)), patch.object(job, "ORDERS", ()):
        job.check_rules(JobSettings(**{rule.given.name: given, rule.other.name: right}))
        job.check_rules(JobSettings(**{rule.other.name: wrong}))
        with pytest.raises(UsageError) as refused:
            job.check_rules(JobSettings(**{rule.given.name: given, rule.other.name: wrong}))
    said = str(refused.value)
    assert said.startswith(rule.given.name) and rule.other.name in said and rule.why in said


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order.less} {order.more}")
def test_each_order_refuses_a_job_and_no_other(order: Order) -> None:
    with patch.object(job, "RULES", ()), patch.object(job, "ORDERS", (order,)):
        for less, more in ((1, 2), (2, 2), (3, 2)):
            numbers: dict[str, Any] = {order.less: less, order.more: more}
            settings = JobSettings(**numbers)
            if less < more or (less == more and not order.below):
                job.check_rules(settings)
                continue
            with pytest.raises(UsageError) as refused:
                job.check_rules(settings)
            assert str(refused.value).startswith(f"{order.less} ({less}) must ") and order.why in str(refused.value)


def test_the_rules_name_settings_and_values_that_there_are() -> None:
    for case in (case for rule in RULES for case in (rule.given, rule.other)):
        choices = SETTINGS[case.name].metadata["choices"]
        assert not choices or set(case.values) <= set(choices)


def test_a_text_is_parsed_when_the_job_is_made_and_once() -> None:
    job = JobConfig(schedule="async:5, sync", trace_steps="1:9", checkpoint_dir="/c", warm_start="/w",
                    warm_start_names="a=b")  # fmt: skip
    for name in ("mode_schedule", "traced_steps", "best_metric", "warm_start_pattern", "earlier_names"):
        assert vars(job)[name] is getattr(job, name)
    assert (job.traced_steps, job.earlier_names) == ((1, 9), {"a": "b"})
