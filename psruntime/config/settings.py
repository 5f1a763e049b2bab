"""How a setting is declared and checked: its default, its help, the heading of its flag, its choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from difflib import SequenceMatcher
from typing import Any

from psruntime.errors import UsageError

HEADINGS = ("job", "data and model", "consistency", "checkpoints", "faults", "network", "security")
CLOSE = 0.7  # how alike two words are, as difflib measures it, when one may be meant by the other
TIE = 0.1  # by how much less alike a second one may be


def setting(
    heading: str,
    default: Any,
    help: str,  # noqa: A002
    *,
    choices: Sequence[str] | None = None,
    metavar: str | None = None,
    default_is: str = "",
    reads: Callable[[str], Any] | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A field of a config that has a flag.

    default: MISSING makes the flag required.  default_is: what the help says instead of the default.  reads: makes the
    value of a text, where a text can say more than the type of the field; raises UsageError.  least, most: its range.
    """
    metadata = {
        "heading": heading, "help": help, "choices": choices, "metavar": metavar, "default_is": default_is,
        "reads": reads, "range": (least, most),
    }  # fmt: skip
    return field(default=default, metadata=metadata)


def settings_of(config: type) -> list[Field[Any]]:
    """The fields that have flags, in their order of declaration."""
    return [f for f in fields(config) if "heading" in f.metadata]


def flag_of(name: str) -> str:
    """The command-line flag of a setting; the unit of times is left out, it is always seconds."""
    return "--" + name.removesuffix("_s").replace("_", "-")


def as_flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings as words of a command line."""
    return tuple(f"{flag_of(name)}={value}" for name, value in settings.items())


def default_text(setting: Field[Any]) -> str:
    """What the help says of the default; empty if there is none."""
    if setting.default is MISSING:
        return "required"
    if setting.metadata["default_is"]:
        return f"default: {setting.metadata['default_is']}"
    if setting.default in (None, ""):
        return ""
    return f"default: {setting.default:g}" if isinstance(setting.default, float) else f"default: {setting.default}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or two, as the end of a complaint; empty if none is close."""
    alike = [(SequenceMatcher(None, word.lstrip("-"), each.lstrip("-")).ratio(), each) for each in known]
    best = max(alike, default=(0.0, ""))[0]
    meant = [each for ratio, each in sorted(alike, reverse=True) if ratio >= max(CLOSE, best - TIE)]
    return f"; did you mean {' or '.join(meant[:2])}?" if meant else ""


def check_values(config: Any) -> None:
    """Raises UsageError if a setting of a config is none of its choices, or out of its range; None is in each."""
    for setting in settings_of(type(config)):
        value, choices = getattr(config, setting.name), setting.metadata["choices"]
        if choices and value not in choices:
            hint = suggestion(value, choices)
            raise UsageError(f"{setting.name} must be one of {', '.join(choices)}, got '{value}'{hint}")
        least, most = setting.metadata["range"]
        if value is None or least is None:
            continue
        if not (value >= least and (most is None or value <= most)):
            wanted = f"at least {least}" if most is None else f"from {least} to {most}"
            raise UsageError(f"{setting.name} must be {wanted}, got {value}")
