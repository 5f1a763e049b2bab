"""How a setting is declared and checked: its default, its help, the heading of its flag, its choices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from difflib import SequenceMatcher
from typing import Any

from psruntime.errors import UsageError

HEADINGS = ("job", "data and model", "consistency", "checkpoints", "faults", "network", "security")
CLOSE = 0.7  # how alike two words are, as difflib measures it, when one may be meant by the other
TIE = 0.1  # by how much less alike a second one may be
OF_THE_MODEL = dict.fromkeys(  # names of settings that there are not
    ("lr", "learning_rate"), "; the model says it, as learning_rate of its ModelSpec, which may be a parameter of "
    "--set, as --set lr=0.1",
)  # fmt: skip

Value = bool | int | float | str  # of a parameter
Params = tuple[tuple[str, Value], ...]  # names and values of --set, which input_fn and model_fn receive
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")  # Python reads no more digits by default
_NUMBER = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|nan)", re.IGNORECASE)


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
    """The settings as words of a command line; one word for each parameter."""
    words = [(name, value) for name, value in settings.items() if not isinstance(value, tuple)]
    words += [
        (name, each) for name, value in settings.items() if isinstance(value, tuple) for each in param_words(value)
    ]
    return tuple(f"{flag_of(name)}={value}" for name, value in words)


def param_of(word: str) -> tuple[str, Value]:
    """The parameter of NAME=VALUE; the value is a number or true or false where it can be, else text.

    Raises:
        UsageError: it is of another form.
    """
    name, equals, text = word.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(f"must be NAME=VALUE, as lr=0.1, got '{word}'")
    return name, value_of(text)


def value_of(text: str) -> Value:
    """The value of a parameter; in double quotes it is always text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def param_words(params: Params) -> list[str]:
    """NAME=VALUE of each parameter, of which `param_of` makes it again."""
    return [f"{name}={value_text(value)}" for name, value in params]


def value_text(value: Value) -> str:
    """The text of which `value_of` makes the value again."""
    if isinstance(value, str):
        return value if value_of(value) == value else f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else repr(value)


def plain(value: Any) -> Any:
    """A number of NumPy as one of Python; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def params_of(given: Any) -> Params:
    """The parameters of a mapping, as a job file or a caller gives it.

    Raises:
        UsageError: it is none; or a name or a value cannot be one.
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"set must have names with values, got {given!r}")
    params = []
    for name, value in given.items():
        value = plain(value)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(value, Value):
            raise UsageError(f"set must have names with a number, true, false or text each, got {name!r}: {value!r}")
        params.append((name, value))
    return tuple(params)


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
