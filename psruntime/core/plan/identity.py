"""What a model is besides its variables: all by which two workers with the same variables would train otherwise.

An identity is a list of facts, each a name and a value as text, so that two of them are compared without TensorFlow.
A number is written as `repr` writes it; a function has no constant, and is named by its kind.  The first worker of a
job fixes its identity, and each checkpoint has it beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Annotated, Any

from psruntime.core.fields import NAME_CHARS, AtMost, Different, Line, Sent, Words, cut
from psruntime.errors import some

PSRUNTIME, TENSORFLOW, PROTOCOL = "psruntime", "TensorFlow", "protocol"
SPEAKS = "psruntime.v1, 7"  # the protocol; the number grows whenever messages, or the variables on a ps, change
VERSIONS = (PSRUNTIME, TENSORFLOW)  # of which major and minor have to agree
NONE = "none"  # the value of a fact that one of two has not
NAMED = 3  # differences in one line
FACTS = 100_000  # in one message; a model with an optimizer for each variable has several for each

FactName = Annotated[str, Line(NAME_CHARS), Sent(lambda name: cut(name, NAME_CHARS))]


@dataclass(frozen=True)
class ModelIdentity:
    """facts: (name, value), the names different, in the order in which they are compared.

    file, text: the file of the model's module, and a digest of what is in it; empty if not known.  They are no part of
    what has to agree.
    """

    facts: Annotated[tuple[tuple[FactName, Words], ...], AtMost(FACTS), Different(itemgetter(0))] = ()
    file: Words = ""
    text: Annotated[str, Line(NAME_CHARS)] = ""

    def without(self, *names: str) -> ModelIdentity:
        """The identity without the facts of these names."""
        return replace(self, facts=tuple(fact for fact in self.facts if fact[0] not in names))

    @property
    def versions(self) -> ModelIdentity:
        """Of psruntime and TensorFlow alone, as every member of a job has them."""
        return ModelIdentity(tuple(fact for fact in self.facts if fact[0] in VERSIONS))

    def data(self) -> dict[str, Any]:
        """As `of_data` takes it, of what JSON knows."""
        return {"facts": [list(fact) for fact in self.facts], "file": self.file, "text": self.text}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> ModelIdentity:
        """Raises KeyError, TypeError or ValueError: the data is not that of an identity."""
        return cls(
            tuple((str(name), str(value)) for name, value in data["facts"]), str(data["file"]), str(data["text"])
        )


UNSAID = ModelIdentity()  # of a process that has no model, or says nothing of it


def differences(ours: ModelIdentity, theirs: ModelIdentity, whose: str) -> Iterator[str]:
    """Each fact that has to agree and does not, as `optimizer: AdamOptimizer, where the job has RMSPropOptimizer`.

    whose: who has `theirs`, such as "the job".
    """
    mine, others = dict(ours.facts), dict(theirs.facts)
    for name in dict.fromkeys([*mine, *others]):
        a, b = mine.get(name, NONE), others.get(name, NONE)
        if (_minor(a) != _minor(b)) if name in VERSIONS else a != b:
            yield f"{name}: {a}, where {whose} has {b}"


def remarks(ours: ModelIdentity, theirs: ModelIdentity, whose: str) -> Iterator[str]:
    """What differs and need not agree: the last number of a version, and the text of the model's file."""
    mine, others = dict(ours.facts), dict(theirs.facts)
    for name in VERSIONS:
        a, b = mine.get(name, NONE), others.get(name, NONE)
        if a != b and _minor(a) == _minor(b):
            yield f"{name}: {a}, where {whose} has {b}"
    if ours.text and theirs.text and ours.text != theirs.text:
        yield f"the text of {ours.file} is not that with which {whose} was trained, {theirs.file} there"


def in_a_line(texts: Iterator[str]) -> str:
    """The first of them, and how many more there are; empty if there is none."""
    return some(list(texts), NAMED, "; ")


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
