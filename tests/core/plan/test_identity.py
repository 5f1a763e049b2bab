"""Which differences of two models refuse a worker, and in which words."""

from __future__ import annotations

import pytest

from psruntime.core.plan.identity import ModelIdentity, differences, in_a_line, remarks

JOB = ModelIdentity(
    (("psruntime", "0.1.0"), ("TensorFlow", "2.21.0"), ("protocol", "psruntime.v1"), ("optimizer", "RMSPropOptimizer"),
     ("learning_rate", "0.001")), "m.py", "a1",
)  # fmt: skip


def but(name: str, value: str | None) -> ModelIdentity:
    facts = dict(JOB.facts) | ({name: value} if value else {})
    return ModelIdentity(tuple((n, v) for n, v in facts.items() if value or n != name), JOB.file, JOB.text)


@pytest.mark.parametrize(
    ("ours", "text"),
    [
        (but("optimizer", "AdamOptimizer"), "optimizer: AdamOptimizer, where the job has RMSPropOptimizer"),
        (but("learning_rate", "0.5"), "learning_rate: 0.5, where the job has 0.001"),
        (but("clip_norm", "5.0"), "clip_norm: 5.0, where the job has none"),
        (but("learning_rate", None), "learning_rate: none, where the job has 0.001"),
        (but("psruntime", "0.2.0"), "psruntime: 0.2.0, where the job has 0.1.0"),
        (but("TensorFlow", "2.20.0"), "TensorFlow: 2.20.0, where the job has 2.21.0"),
        (but("protocol", "psruntime.v2"), "protocol: psruntime.v2, where the job has psruntime.v1"),
    ],
)  # fmt: skip
def test_the_first_difference_names_the_fact_and_both_values(ours: ModelIdentity, text: str) -> None:
    assert list(differences(ours, JOB, "the job")) == [text]


def test_a_patch_of_a_version_and_the_text_of_the_file_are_remarks() -> None:
    patched = but("psruntime", "0.1.7")
    assert not list(differences(patched, JOB, "the job"))
    assert in_a_line(remarks(patched, JOB, "the job")) == "psruntime: 0.1.7, where the job has 0.1.0"
    edited = ModelIdentity(JOB.facts, "/b/m.py", "b2")
    assert not list(differences(edited, JOB, "the job"))
    assert "/b/m.py" in in_a_line(remarks(edited, JOB, "the job"))


def test_it_comes_back_from_json() -> None:
    assert ModelIdentity.of_data(JOB.data()) == JOB
