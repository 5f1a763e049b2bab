"""The checks of a join."""

from __future__ import annotations

import pytest

from psruntime.core.members.joins import check_model
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Join
from psruntime.core.plan.identity import PROTOCOL, SPEAKS, ModelIdentity
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
