"""Random protobuf messages of any type, for Hypothesis: every field may hold anything that its wire type can."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

_INT_BITS = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}


@st.composite
def messages(draw: Any, kind: type[Message]) -> Message:
    """A message in which any field may be missing, and numbers are often small enough to be right."""
    message = kind()
    _fill(draw, message)
    return message


def _fill(draw: Any, message: Message) -> None:
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            table = getattr(message, field.name)
            for key in draw(st.lists(st.text(max_size=70), max_size=3)):
                table[key] = draw(_numbers(63))
        elif field.is_repeated:
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
