"""The codec of all messages: dataclasses to protobuf messages and back, by the annotations of the dataclass' fields.

A field of a dataclass is the field of the same name in the proto; where that is a Duration, the dataclass has seconds
and `_s` behind the name.

    int, float, bool, str                  itself; absent, where the proto has it optional: the default of the dataclass
    X | None                               optional
    Enum, or str where the proto has one   an enum, its words in upper case with a prefix; a text "" is UNSPECIFIED
    str where the proto has a bool         "on" and "off"
    tuple[X, ...], frozenset[X]            repeated
    dict[K, V]                             map
    a dataclass                            a message; absent: the default of the field if it has one
    tuple[X, Y]                            a message with the fields in this order
    A | B, both dataclasses                a oneof of the field's name, with messages of the names of the dataclasses

core/fields.py says what else an annotation may have: checks above all.  A dataclass with a method `checked`, which
returns the object or raises a ValueError or UsageError, is checked as a whole, too.

`to_wire` trusts its argument.  `from_wire` gives a valid dataclass or raises a UsageError that begins with the field's
name, as `worker.stats.loss`, whatever was sent.  Both are compiled once for each class and message.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from enum import Enum
from operator import attrgetter, itemgetter, or_
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import OneofDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from psruntime.config.job_settings import SWITCH
from psruntime.core.fields import COUNT_LIMIT, INDEX_LIMIT, LOCAL, REMEMBERED, AtMost, Sent, Whole, amount, anything
from psruntime.errors import UsageError
from psruntime.versions import is_repeated

DURATION_LIMIT_S = 315_576_000_000  # of google.protobuf.Duration: 10,000 years
UNIONS = (Union, UnionType)

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Place = Any  # the descriptor of a field, or of a oneof; protobuf's own stubs say None of what a field always has
Read = Callable[[Any], Any]  # from a message
Write = Callable[[Any, Any], None]  # a value, into a message
Check = Callable[[str, Any], Any]  # the name and the received value; returns the value
SentAs = Callable[[Any], Any]


def to_wire(value: object, kind: type[M]) -> M:
    wire = kind()
    _codec(type(value), kind.DESCRIPTOR).write(value, wire)
    return wire


def from_wire(cls: type[T], wire: Message, name: str = "") -> T:
    """name: of the message, with which errors then begin."""
    read = _codec(cls, wire.DESCRIPTOR).read
    value: T = _within(name, read)(wire) if name else read(wire)
    return value


def whole_of(place: Place) -> Whole:
    """The whole numbers that a field takes where its annotation has no check."""
    return Whole(0, INDEX_LIMIT if place.cpp_type == place.CPPTYPE_INT32 else COUNT_LIMIT)


def duration(value_s: float, into: Duration | None = None) -> Duration:
    """The wire form of seconds; one below 0 becomes 0."""
    into = Duration() if into is None else into
    into.seconds, into.nanos = divmod(round(max(0.0, min(value_s, DURATION_LIMIT_S)) * 10**9), 10**9)
    return into


def seconds(name: str, value: Duration) -> float:
    """Seconds from 0.  A whole number of nanoseconds, divided once, so that 0.7 comes back as 0.7."""
    whole, nanos = value.seconds, value.nanos
    if not (0 <= whole <= DURATION_LIMIT_S and 0 <= nanos < 10**9):
        raise UsageError(f"{name} must be from 0 to {DURATION_LIMIT_S} s, got {whole} s and {nanos} ns")
    return (whole * 10**9 + nanos) / 10**9


class _Codec(NamedTuple):
    read: Read
    write: Write


class _Hint(NamedTuple):
    """An annotation: the type, what else it says, and whether the value may be None."""

    base: Any
    notes: tuple[Any, ...]
    is_optional: bool

    @classmethod
    def of(cls, annotation: Any) -> _Hint:
        notes, is_optional = [], False
        while True:
            if get_origin(annotation) is Annotated:
                notes += annotation.__metadata__
                annotation = annotation.__origin__
            elif get_origin(annotation) in UNIONS and NoneType in get_args(annotation):
                is_optional = True
                annotation = functools.reduce(or_, (each for each in get_args(annotation) if each is not NoneType))
            elif hasattr(annotation, "__supertype__"):  # a NewType
                annotation = annotation.__supertype__
            else:
                return cls(annotation, tuple(notes), is_optional)

    def note(self, kind: type[T]) -> T | None:
        return next((note for note in self.notes if isinstance(note, kind)), None)

    @property
    def sent(self) -> SentAs | None:
        note = self.note(Sent)
        return note.of if note else None

    @property
    def check(self) -> Check | None:
        """An annotation has at most one."""
        return next((note for note in self.notes if callable(note)), None)


def _compiled(cls: Any, message: Any) -> _Codec:
    """cls: a dataclass, or a tuple with a value for each field of the message."""
    build = (lambda *values: values) if get_origin(cls) is tuple else cls
    reads: list[Read] = []
    writes: list[Write] = []
    plain: list[tuple[str, Read]] = []  # written as they are, unless that is as if they were absent
    left = {name for name, place in message.fields_by_name.items() if not place.GetOptions().deprecated}
    for name, of, hint, default in _parts(cls, message):
        place: Place = message.fields_by_name.get(name) or message.oneofs_by_name.get(name)
        place = place or message.fields_by_name.get(name.removesuffix("_s"))
        if place is None:
            if LOCAL not in hint.notes:
                raise TypeError(f"{message.full_name} has no field for {cls.__name__}.{name}")
            reads.append(functools.partial(lambda value, _: value, default))
            continue
        left -= {part.name for part in place.fields} if isinstance(place, OneofDescriptor) else {place.name}
        read, write = _field(of, hint, place, default)
        reads.append(read)
        if write is None:
            plain.append((place.name, of))
        else:
            writes.append(write)
    if left:
        raise TypeError(f"{cls.__name__} has no field for {', '.join(sorted(left))} of {message.full_name}")

    def read_all(wire: Any) -> Any:
        return build(*[read(wire) for read in reads])

    def read_checked(wire: Any) -> Any:
        value = read_all(wire)
        try:
            return value.checked()
        except ValueError as error:
            raise UsageError(str(error)) from error

    def write_all(value: Any, wire: Any) -> None:
        for name, of in plain:
            if part := of(value):
                setattr(wire, name, part)
        for write in writes:
            write(value, wire)

    return _Codec(read_checked if hasattr(cls, "checked") else read_all, write_all)


_codec: Callable[[Any, Any], _Codec] = functools.cache(_compiled)


def _parts(cls: Any, message: Any) -> Iterator[tuple[str, Read, _Hint, Any]]:
    """Of each field its name, how it is got, its annotation and its default."""
    if get_origin(cls) is tuple:
        for i, (place, annotation) in enumerate(zip(message.fields, get_args(cls), strict=True)):
            yield place.name, itemgetter(i), _Hint.of(annotation), dataclasses.MISSING
    else:
        annotations = get_type_hints(cls, include_extras=True)
        for each in dataclasses.fields(cls):
            yield each.name, attrgetter(each.name), _Hint.of(annotations[each.name]), each.default


def _within(name: str, read: Read) -> Read:
    """Reads what is in a field: errors begin with its name."""

    def read_within(wire: Any) -> Any:
        try:
            return read(wire)
        except UsageError as error:
            raise UsageError(f"{name}.{error}") from error

    return read_within


def _field(of: Read, hint: _Hint, place: Place, default: Any) -> tuple[Read, Write | None]:
    """How a field is read and written; None: as it is, unless it is false.  of: gets it from the dataclass."""
    if isinstance(place, OneofDescriptor):
        return _oneof(of, hint, place)
    if is_repeated(place):
        is_map = place.message_type is not None and place.message_type.GetOptions().map_entry
        return _map(of, hint, place) if is_map else _repeated(of, hint, place)
    if place.message_type is Duration.DESCRIPTOR:
        return _duration(of, hint, place)
    if place.message_type is not None:
        return _part(of, hint, place, default)
    return _optional(of, hint, place, default) if place.has_presence else _single(of, hint, place, default)


def _single(of: Read, hint: _Hint, place: Place, default: Any) -> tuple[Read, Write | None]:
    name, get, (check, sent) = place.name, attrgetter(place.name), _scalar(hint, place, default)

    def write(value: Any, wire: Any) -> None:
        if part := of(value):
            setattr(wire, name, sent(part))  # type: ignore[misc]

    return _checking(name, get, check), write if sent else None


def _checking(name: str, get: Read, check: Check | None) -> Read:
    if check is None:
        return get
    if not isinstance(check, Whole):
        return lambda wire: check(name, get(wire))
    least, limit = check.least, check.limit

    def read(wire: Any) -> Any:  # as Whole does, without a call
        value = get(wire)
        return value if least <= value < limit else check(name, value)

    return read


def _optional(of: Read, hint: _Hint, place: Place, default: Any) -> tuple[Read, Write]:
    name, (check, sent) = place.name, _scalar(hint, place, default)
    read_present = _checking(name, attrgetter(name), check)
    absent, must_be_there = _if_absent(hint, default)

    def read(wire: Any) -> Any:
        return read_present(wire) if must_be_there or wire.HasField(name) else absent

    def write(value: Any, wire: Any) -> None:
        part = of(value)
        if part != absent:
            setattr(wire, name, sent(part) if sent else part)

    return read, write


def _if_absent(hint: _Hint, default: Any) -> tuple[Any, bool]:
    """The value of a field that is absent, and whether there is none: then what protobuf has for it is checked."""
    return (None, False) if hint.is_optional else (default, default is dataclasses.MISSING)


def _scalar(hint: _Hint, place: Place, default: Any = None) -> tuple[Check | None, SentAs | None]:
    """How a value that is no message is checked and sent; None: it is taken, or sent, as it is."""
    if place.enum_type is not None:
        return _enum(hint.base, place.enum_type, default)
    if hint.base is str and place.cpp_type == place.CPPTYPE_BOOL:
        return (lambda _, value: SWITCH[value]), SWITCH.index
    check = hint.check
    if check is None and hint.base is int:
        check = whole_of(place)
    if check is None and hint.base is float:
        check = amount
    return None if check is anything else check, hint.sent


def _enum(base: Any, enum: Any, default: Any) -> tuple[Check, SentAs]:
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    words = {each.number: each.name for each in enum.values if each.number}
    meanings: dict[int, Any] = {}
    for number, word in words.items():
        word = word.removeprefix(prefix)
        meanings[number] = base[word] if issubclass(base, Enum) else word.lower().replace("_", "-")
    if default == "":
        meanings[0] = ""
    numbers = {meaning: number for number, meaning in meanings.items()}

    def check(name: str, value: int) -> Any:
        if value not in meanings:
            raise UsageError(f"{name} must be one of {', '.join(words.values())}, got {value}")
        return meanings[value]

    return check, numbers.__getitem__


def _duration(of: Read, hint: _Hint, place: Place) -> tuple[Read, Write]:
    name, get, absent = place.name, attrgetter(place.name), None if hint.is_optional else 0.0

    def read(wire: Any) -> Any:
        return seconds(name, get(wire)) if wire.HasField(name) else absent

    def write(value: Any, wire: Any) -> None:
        part = of(value)
        if part != absent:
            into = get(wire)
            into.SetInParent()
            duration(part, into)

    return read, write


def _part(of: Read, hint: _Hint, place: Place, default: Any) -> tuple[Read, Write]:
    name, get, sent, codec = place.name, attrgetter(place.name), hint.sent, _codec(hint.base, place.message_type)
    read_part, write_part = _within(name, codec.read), codec.write
    absent, must_be_there = _if_absent(hint, default)

    def read(wire: Any) -> Any:
        return read_part(get(wire)) if must_be_there or wire.HasField(name) else absent

    def write(value: Any, wire: Any) -> None:
        part = of(value)
        if part is not None:
            into = get(wire)
            into.SetInParent()
            write_part(sent(part) if sent else part, into)

    return read, write


def _repeated(of: Read, hint: _Hint, place: Place) -> tuple[Read, Write]:
    name, get, check, at_most = place.name, attrgetter(place.name), hint.check, hint.note(AtMost)
    container = get_origin(hint.base)
    in_order = sorted if container is frozenset else list
    read_entry, extend = _entries(_Hint.of(get_args(hint.base)[0]), place)

    def read(wire: Any) -> Any:
        entries = get(wire)
        if not entries:
            return container()
        if at_most and len(entries) > at_most.entries:
            raise UsageError(f"{name} must be at most {at_most.entries}, got {len(entries)}")
        values = container(map(read_entry, entries))
        return check(name, values) if check else values

    def write(value: Any, wire: Any) -> None:
        if values := of(value):
            extend(get(wire), in_order(values))

    return _remembered(read, place) if REMEMBERED in hint.notes else read, write


def _entries(hint: _Hint, place: Place) -> tuple[Read, Write]:
    """How an entry of a repeated field is read, and how all of them are written."""
    if place.message_type is None:
        check, sent = _scalar(hint, place)
        read = functools.partial(check, place.name) if check else lambda value: value
        return read, lambda into, values: into.extend(map(sent, values) if sent else values)
    if place.message_type is Duration.DESCRIPTOR:
        return functools.partial(seconds, place.name), lambda into, values: into.extend(map(duration, values))
    codec = _codec(hint.base, place.message_type)

    def extend(into: Any, values: Any) -> None:
        for value in values:
            codec.write(value, into.add())

    return _within(place.name, codec.read), extend


def _remembered(read: Read, place: Place) -> Read:
    """The entries of the latest message again are the same object, at a tenth of the time."""
    name, kind = place.name, place.containing_type._concrete_class
    latest: tuple[bytes, Any] = b"", ()

    def read_or_remember(wire: Any) -> Any:
        nonlocal latest
        text = kind(**{name: getattr(wire, name)}).SerializeToString()
        kept = latest  # other threads read, too
        if text != kept[0]:
            kept = latest = text, read(wire)
        return kept[1]

    return read_or_remember


def _map(of: Read, hint: _Hint, place: Place) -> tuple[Read, Write]:
    name, get, at_most = place.name, attrgetter(place.name), hint.note(AtMost)
    sides = zip(map(_Hint.of, get_args(hint.base)), place.message_type.fields, strict=True)
    check_key, check_value = (_scalar(side, part)[0] or anything for side, part in sides)

    def read(wire: Any) -> dict[Any, Any]:
        entries = get(wire)
        if at_most and len(entries) > at_most.entries:
            raise UsageError(f"{name} must have at most {at_most.entries} entries, got {len(entries)}")
        return {check_key(name, key): check_value(f"{name}[{key}]", entries[key]) for key in sorted(entries)}

    def write(value: Any, wire: Any) -> None:
        get(wire).update(of(value))

    return read, write


def _oneof(of: Read, hint: _Hint, place: Place) -> tuple[Read, Write]:
    name, classes = place.name, {each.__name__: each for each in get_args(hint.base)}
    reads: dict[str, Read] = {}
    writes: dict[type, tuple[str, Write]] = {}
    for part in place.fields:
        cls = classes[part.message_type.name]
        codec = _codec(cls, part.message_type)
        reads[part.name], writes[cls] = _within(part.name, codec.read), (part.name, codec.write)

    def read(wire: Any) -> Any:
        which = wire.WhichOneof(name)
        if which is not None:
            return reads[which](getattr(wire, which))
        if hint.is_optional:
            return None
        raise UsageError(f"{name} must be {' or '.join(reads)}, got none")

    def write(value: Any, wire: Any) -> None:
        part = of(value)
        if part is not None:
            which, write_part = writes[type(part)]
            into = getattr(wire, which)
            into.SetInParent()
            write_part(part, into)

    return read, write
