"""Names in a checkpoint: which tensor of it each of ours is restored from.

Ours and those of stock TensorFlow are the same but for two things that this module knows.  What an optimizer
has once for all its variables (Adam's `beta1_power`) is here once a variable (`w/beta1_power`), and is there
under its own name or under that of the name scope in which `minimize` was called (`train/beta1_power`).  And
a `minimize` in a variable scope puts that scope before the slots too (`train/w/Adam`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class EntryKind(Enum):
    """VARIABLE of the model; SLOT of the optimizer, in the shape of a variable; what an optimizer has SHARED."""

    VARIABLE = "variable"
    SLOT = "slot"
    SHARED = "shared"


@dataclass(frozen=True)
class Entry:
    """A logical tensor of a checkpoint: its name, shape in entries per axis, and dtype.

    stock: of a shared one, the name that stock TensorFlow gives it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: EntryKind = EntryKind.VARIABLE
    stock: str = ""


Found = tuple[tuple[int, ...], str]  # shape and dtype of a tensor that is in a checkpoint


def find_sources(entries: Sequence[Entry], there: Mapping[str, Found]) -> tuple[dict[str, str], list[str]]:
    """Finds what to restore each entry from, among the tensors of a checkpoint.

    Returns:
        (name of each entry that has a source -> the source's name, a text for each entry that has none that fits).
    """
    scope = _scope_of_slots(entries, there)
    sources, misfits = {}, []
    for entry in entries:
        source = next((name for name in _candidates(entry, scope, there) if name in there), None)
        ours = described((entry.shape, entry.dtype))
        if source is None:
            misfits.append(f"{entry.name} is missing there, {ours} in the model")
        elif there[source] != (entry.shape, entry.dtype):
            misfits.append(f"{source} {described(there[source])} there, {ours} in the model")
        else:
            sources[entry.name] = source
    return sources, misfits


def _candidates(entry: Entry, scope: str, there: Mapping[str, Found]) -> Iterable[str]:
    """Names to look for, the best first."""
    yield entry.name
    if entry.kind is EntryKind.SLOT:
        yield scope + entry.name
    if entry.kind is EntryKind.SHARED:
        yield entry.stock
        scoped = _scoped(entry.stock, there)
        if len(scoped) == 1:
            yield scoped[0]


def _scope_of_slots(entries: Iterable[Entry], there: Mapping[str, Found]) -> str:
    """The one scope under which the checkpoint has all the slots that it lacks under their own names; else empty."""
    missing = [e.name for e in entries if e.kind is EntryKind.SLOT and e.name not in there]
    scopes = [{n.removesuffix(name) for n in _scoped(name, there)} for name in missing]
    common = set.intersection(*scopes) if scopes else set()
    return common.pop() if len(common) == 1 else ""


def _scoped(name: str, there: Mapping[str, Found]) -> list[str]:
    """The tensors that have this name under some scope, and do not belong to a variable there by their whole name."""
    return [n for n in there if n.endswith(f"/{name}") and n.rpartition("/")[0] not in there]


def described(found: Found) -> str:
    """As messages have it."""
    shape, dtype = found
    return f"{dtype}{list(shape)}"
