"""One zygote for all chaos tests of a run."""

from __future__ import annotations

from tests.cluster.conftest import zygote

__all__ = ["zygote"]
