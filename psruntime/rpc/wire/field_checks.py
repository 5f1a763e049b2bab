"""Checks of single wire values.  Each takes the field's name and raises a UsageError that begins with it."""

from __future__ import annotations

import math

from google.protobuf.duration_pb2 import Duration
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from psruntime.core.plan.buckets import AGGREGATIONS, DTYPE_BYTES, TRAINED_DTYPES, VariableSpec
from psruntime.errors import UsageError

COUNT_LIMIT = 2**53  # what a float, so also a JSON reader, still counts exactly
INDEX_LIMIT = 2**31
INCARNATION_LIMIT = 2**63
BYTES_LIMIT = 2**63  # of a sum over the life of a process: at 12.5 GB/s it passes COUNT_LIMIT within 9 days
DURATION_LIMIT_S = 315_576_000_000  # of google.protobuf.Duration: 10,000 years
ADDRESS_CHARS = 256
VERSION_CHARS = 64
JOIN_ID_CHARS = 64
TAG_CHARS = 10
NAME_CHARS = 1024
TEXT_CHARS = 4096
SPECS = 100_000
AXES = 254  # TensorFlow has no more
CAUSES = 64
WORKERS = 100_000
CAUSE_CHARS = 64
FACTS = 100_000  # of a model's identity; one with an optimizer for each variable has several for each
GPUS = 64  # of a machine


def number(name: str, value: int, least: int = 0, limit: int = COUNT_LIMIT) -> int:
    """A whole number with least <= value < limit."""
    if not least <= value < limit:
        raise UsageError(f"{name} must be from {least} to {limit - 1}, got {value}")
    return value


def index(name: str, value: int) -> int:
    return number(name, value, limit=INDEX_LIMIT)


def incarnation(name: str, value: int) -> int:
    return number(name, value, least=1, limit=INCARNATION_LIMIT)


def amount(name: str, value: float) -> float:
    """A finite float from 0."""
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{name} must be a finite number from 0, got {value:g}")
    return value


def share(name: str, value: float) -> float:
    """A part of a whole, 0 to 1."""
    if not 0 <= value <= 1:
        raise UsageError(f"{name} must be from 0 to 1, got {value:g}")
    return value


def text(name: str, value: str, limit: int, least: int = 0) -> str:
    """A text of `least` to `limit` characters."""
    if not least <= len(value) <= limit:
        raise UsageError(f"{name} must have {least} to {limit} characters, got {len(value)}")
    return value


def address(name: str, value: str) -> str:
    """A text that can be `host:port`; whether it is one is checked where it is used."""
    text(name, value, ADDRESS_CHARS)
    if not value.isascii() or not value.isprintable() or " " in value:
        raise UsageError(f"{name} must have visible ASCII characters only")
    return value


def words(name: str, value: str, limit: int = TEXT_CHARS) -> str:
    """A text for people, who read it in a terminal: one line, and nothing but what can be seen."""
    text(name, value, limit)
    return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)


def clipped(value: str, limit: int = TEXT_CHARS) -> str:
    """A text made fit to be sent: cut at the limit, lone surrogates (as in file names) replaced."""
    return value[:limit].encode("utf-8", "replace").decode("utf-8")


def word(name: str, wire: EnumTypeWrapper, value: int) -> str:
    """What a wire enum value is called, without the prefix of its enum."""
    names = {number: word for word, number in wire.items() if number != 0}
    prefix = wire.Name(0).removesuffix("UNSPECIFIED")
    if value not in names:
        raise UsageError(f"{name} must be one of {', '.join(names.values())}, got {value}")
    return names[value].removeprefix(prefix)


def seconds(name: str, value: Duration) -> float:
    """Seconds from 0.  A whole number of nanoseconds, divided once, so that 0.7 comes back as 0.7."""
    if not (0 <= value.seconds <= DURATION_LIMIT_S and 0 <= value.nanos < 10**9):
        raise UsageError(f"{name} must be from 0 to {DURATION_LIMIT_S} s, got {value.seconds} s and {value.nanos} ns")
    return (value.seconds * 10**9 + value.nanos) / 10**9


def duration(value_s: float) -> Duration:
    """The wire form of seconds; one below 0 becomes 0."""
    whole, nanos = divmod(round(max(0.0, min(value_s, DURATION_LIMIT_S)) * 10**9), 10**9)
    return Duration(seconds=whole, nanos=nanos)


def variable(name: str, spec: VariableSpec) -> VariableSpec:
    """One variable, which is returned; `name` is the field's."""
    text(f"{name}.name", spec.name, NAME_CHARS, least=1)
    if len(spec.shape) > AXES or any(not 0 <= n < COUNT_LIMIT for n in spec.shape):
        raise UsageError(f"{name}.shape of {spec.name} must have at most {AXES} axes of 0 to {COUNT_LIMIT - 1} entries")
    dtypes = TRAINED_DTYPES if spec.trainable else tuple(DTYPE_BYTES)
    if spec.dtype not in dtypes:
        raise UsageError(
            f"{name}.dtype of {spec.name} must be one of {', '.join(dtypes)}, got '{spec.dtype[:NAME_CHARS]}'"
        )
    if spec.sparse and not spec.shape:
        raise UsageError(f"{name}.sparse of {spec.name} must be false, it is a scalar")
    if not 0 <= spec.group < COUNT_LIMIT:
        raise UsageError(f"{name}.group of {spec.name} must be from 0 to {COUNT_LIMIT - 1}, got {spec.group}")
    if spec.dynamic and not (spec.sparse and spec.trainable and spec.group and len(spec.shape) > 1 and spec.size):
        raise UsageError(f"{name}.dynamic of {spec.name} must be left out, its rows cannot be given to ids")
    if spec.aggregation and (spec.aggregation not in AGGREGATIONS or spec.trainable or spec.sparse):
        raise UsageError(
            f"{name}.aggregation of {spec.name} must be one of {', '.join(AGGREGATIONS)}, of a fixed variable that is "
            f"not sparse, got '{spec.aggregation[:NAME_CHARS]}'"
        )
    if spec.dynamic and not (spec.dynamic.admit_after >= 1 and spec.dynamic.expire_after >= 0):
        raise UsageError(f"{name}.dynamic of {spec.name} must have admit_after from 1, expire_after from 0")
    return spec
