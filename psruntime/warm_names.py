"""Which variables a warm start takes, as a user says it: a pattern of names, and names that have changed."""

from __future__ import annotations

import re

from psruntime.errors import UsageError


def pattern_of(text: str) -> re.Pattern[str]:
    """Of names of variables, which it matches from their beginning; an empty text matches all.

    Raises:
        UsageError: it is no regular expression.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"warm_start_vars must be a regular expression, got '{text}': {error}") from error


def earlier_names(text: str) -> dict[str, str]:
    """Of NEW=OLD,...: the name of a variable of this model -> that in the checkpoint.

    Raises:
        UsageError: it is of another form, or says one name twice.
    """
    names: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        new, equals, old = (word.strip() for word in pair.partition("="))
        if not (new and equals and old):
            raise UsageError(f"warm_start_names must be NEW=OLD,..., names of variables, got '{pair}'")
        if new in names:
            raise UsageError(f"warm_start_names says {new} twice")
        names[new] = old
    return names
