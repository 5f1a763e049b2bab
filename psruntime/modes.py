"""The modes in which workers are kept together, and how they are named: `async`, `bounded 4`, `sync`."""

from __future__ import annotations

BOUNDED, SYNC = "bounded", "sync"
MODES = ("async", BOUNDED, SYNC)


def named(mode: str, bound: int | None) -> str:
    """As people write it.  bound: of mode bounded."""
    return mode if bound is None else f"{mode} {bound}"
