"""The checks of a join."""

from __future__ import annotations

import pytest

from psruntime.core.members.joins import check_model, check_versions
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Join
from psruntime.core.plan.identity import PROTOCOL, PSRUNTIME, SPEAKS, TENSORFLOW, UNSAID, ModelIdentity
from psruntime.errors import ModelDiffersError


def test_a_worker_of_another_protocol_is_refused_before_its_model_is_read() -> None:
    """Also by a coordinator that knows no model yet, such as one that alone was started with a newer psruntime."""
    join = Join(Role.WORKER, 3, "a:1", "a:2", "join", "job", identity=ModelIdentity(((PROTOCOL, "psruntime.v1, 1"),)))
    with pytest.raises(
        ModelDiffersError, match=f"^worker 3 speaks protocol psruntime.v1, 1, and the coordinator {SPEAKS}"
    ):
        check_model(join, None, None)
    check_model(
        Join(Role.WORKER, 3, "a:1", "a:2", "join", "job", identity=ModelIdentity(((PROTOCOL, SPEAKS),))), None, None
    )


def with_versions(role: Role, tensorflow: str, psruntime: str = "0.1.0") -> Join:
    facts = ((PSRUNTIME, psruntime), (TENSORFLOW, tensorflow), (PROTOCOL, SPEAKS))
    return Join(role, 1, "a:1", "a:2", "join", "job", identity=ModelIdentity(facts))


@pytest.mark.parametrize("role", Role)
def test_a_member_with_another_minor_version_is_refused_in_one_line(role: Role) -> None:
    job = with_versions(Role.PS, "2.21.0").identity.versions
    with pytest.raises(ModelDiffersError) as caught:
        check_versions(with_versions(role, "2.20.0"), job)
    assert str(caught.value) == (
        f"{role} 1 has other versions than the job: TensorFlow: 2.20.0, where the job has 2.21.0; "
        "all its processes need the same"
    )
    with pytest.raises(ModelDiffersError, match=r"psruntime: 0\.2\.0, where the job has 0\.1\.0"):
        check_versions(with_versions(role, "2.21.0", psruntime="0.2.0"), job)
    check_versions(with_versions(role, "2.21.1"), job)
    check_versions(with_versions(role, "2.20.0"), UNSAID)
