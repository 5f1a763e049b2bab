"""Protobuf messages of any type by reflection, so that a new field is covered by itself.

`messages` are random ones for Hypothesis, every field of which may hold anything that its wire type can; `changed` are
all that differ from a given one in one field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from psruntime.versions import is_repeated

MANY = 70_000  # entries of a repeated field
_INT_BITS = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}
_INTS = {
    31: (0, 1, -1, 2**31 - 1, -(2**31)),
    63: (0, 1, -1, 2**31, 2**53 - 1, 2**53, 2**62, 2**63 - 1, -(2**63)),
}
_FLOATS = (0.0, -0.0, -1.0, 5e-324, 1.7e308, math.inf, -math.inf, math.nan)
_TEXTS = (
    "", " ", "\0", "\x1b[31m", "two\nlines", "\u202egnal", "\ud7ff\ue000\U0010ffff", "[/b]", "x" * 65, "x" * 257,
    "x" * 5000, "host:99999", "a:b", ":1", "127.0.0.1:2222", "10.0.0.1:2222", "localhost:1", "[::1]:1",
    "f\u00e4r.invalid:1", "\u0661:\u0661", "a..b:1", "x" * 70 + ".invalid:1",
)  # fmt: skip


@st.composite
def messages(draw: Any, kind: type[Message]) -> Message:
    """A message in which any field may be missing, and numbers are often small enough to be right."""
    message = kind()
    _fill(draw, message)
    return message


def changed(message: Message) -> Iterator[tuple[str, Message]]:
    """Copies of a message, each with another value in one field, in one of its parts or its parts' parts.

    The parts are those that it has, so give one that has them all; of a oneof every member is set in turn.
    """
    for path, field in _fields(message, ()):
        name = ".".join((*map(str, path), field.name))
        for value in _values(field):
            copy = type(message)()
            copy.CopyFrom(message)
            place: Any = copy
            for step in path:
                place = place[step] if isinstance(step, int) else getattr(place, step)
            place.ClearField(field.name)
            _put(place, field, value)
            yield f"{name} = {str(value)[:40]!r}", copy


def whole(kind: type[Message], values: dict[str, Any]) -> list[Message]:
    """Messages with every field and part, one for each member of a oneof; `values` by field name, else 1, "x", true."""
    found = [kind()]
    for field in kind.DESCRIPTOR.fields:
        ways = [field] if field.containing_oneof is None else list(field.containing_oneof.fields)
        if field is ways[0]:
            found = [_with(message, way, values) for message in found for way in ways]
    return found


def _with(message: Message, field: FieldDescriptor, values: dict[str, Any]) -> Message:
    """A copy in which the field is set too, and all that is in it."""
    copy = type(message)()
    copy.CopyFrom(message)
    given = {field.name: values[field.name]} if field.name in values else None
    if given:
        copy.MergeFrom(type(message)(**given))
    elif _is_map(field):
        key, value = field.message_type.fields
        getattr(copy, field.name)[_plain(key)] = _plain(value)
    elif field.message_type is not None:
        part = getattr(copy, field.name)
        part = part.add() if is_repeated(field) else part
        part.SetInParent()
        part.CopyFrom(whole(type(part), values)[0])
    elif is_repeated(field):
        getattr(copy, field.name).append(_plain(field))
    else:
        setattr(copy, field.name, _plain(field))
    return copy


def _plain(field: FieldDescriptor) -> Any:
    return "x" if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else 1


def _fields(message: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], FieldDescriptor]]:
    """Every field of a message and of the parts that it has, with the way to the part."""
    for field in message.DESCRIPTOR.fields:
        yield path, field
        if field.message_type is None or _is_map(field):
            continue
        if is_repeated(field):
            for i, part in enumerate(getattr(message, field.name)):
                yield from _fields(part, (*path, field.name, i))
        elif message.HasField(field.name):
            yield from _fields(getattr(message, field.name), (*path, field.name))


def _values(field: FieldDescriptor) -> list[Any]:
    """What to put into a field; None leaves it out.  A list for a repeated one, a dictionary for a map."""
    if _is_map(field):
        keys, values = map(_scalar_values, field.message_type.fields)
        plain = str if isinstance(keys[0], str) else int
        many = [{plain(i): values[0] for i in range(count)} for count in (65, MANY)]
        return [None, *({key: values[0]} for key in keys), *({plain(1): value} for value in values), *many]
    if field.message_type is not None:
        return [None, [{}] * MANY] if is_repeated(field) else [None, {}]
    values = list(_scalar_values(field))
    return [None, *([value] for value in values), values[:1] * MANY] if is_repeated(field) else [None, *values]


def _put(place: Any, field: FieldDescriptor, value: Any) -> None:
    if value is None:
        return
    if _is_map(field):
        getattr(place, field.name).update(value)
    elif is_repeated(field):
        entries = getattr(place, field.name)
        for entry in value:
            entries.add() if field.message_type is not None else entries.append(entry)
    elif field.message_type is not None:
        getattr(place, field.name).SetInParent()
    else:
        setattr(place, field.name, value)


def _scalar_values(field: FieldDescriptor) -> tuple[Any, ...]:
    kind = field.cpp_type
    if kind in _INT_BITS:
        return _INTS[_INT_BITS[kind]]
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return (*range(8), 99, *_INTS[31])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return (False, True)
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return _FLOATS
    assert kind == FieldDescriptor.CPPTYPE_STRING, field.full_name
    return _TEXTS


def _fill(draw: Any, message: Message) -> None:
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        if _is_map(field):
            table = getattr(message, field.name)
            key, value = field.message_type.fields
            for name in draw(st.lists(_scalars(key), max_size=3)):
                table[name] = draw(_scalars(value))
        elif is_repeated(field):
            for _ in range(draw(st.integers(0, 3))):
                if field.message_type is not None:
                    _fill(draw, getattr(message, field.name).add())
                else:
                    getattr(message, field.name).append(draw(_scalars(field)))
        elif draw(st.integers(0, 4)):  # four fields of five are there
            if field.message_type is not None:
                part = getattr(message, field.name)
                part.SetInParent()
                _fill(draw, part)
            else:
                setattr(message, field.name, draw(_scalars(field)))


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    kind = field.cpp_type
    if kind in _INT_BITS:
        return _numbers(_INT_BITS[kind])
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return st.integers(0, 7) | _numbers(31)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return st.floats()
    assert kind == FieldDescriptor.CPPTYPE_STRING, field.full_name
    return st.sampled_from(["float32", "127.0.0.1:2222", "dense/kernel"]) | st.text(max_size=300)


def _numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 5) | st.integers(-(2**bits), 2**bits - 1)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
