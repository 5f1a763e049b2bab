"""Which pushes of a worker a bucket has accepted, though several are under way and may arrive in any order.

The window against replays of IPsec (RFC 4303, section 3.4.3): the highest sequence number so far, and a bit for each
of those up to it.  What is older than the window counts as accepted; a worker never has that many under way.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Tensor
from psruntime.graph.store.numbers import Numbers

WINDOW_SIZE = 62  # sequence numbers; as many bits of an int64 as are safe to shift
ALL = (1 << WINDOW_SIZE) - 1


def is_in(window: Tensor, highest: Tensor, sequence: Tensor, numbers: Numbers) -> Tensor:
    """Whether the sequence number was accepted before; bool [].  All are int64 []."""
    age = highest - sequence
    bit = tf1.bitwise.bitwise_and(tf1.bitwise.right_shift(window, _within(age, numbers)), numbers(1))
    older = age >= numbers(WINDOW_SIZE)
    return tf1.logical_and(age >= numbers(0), tf1.logical_or(older, tf1.equal(bit, numbers(1))))


def with_one_more(window: Tensor, highest: Tensor, sequence: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
    """(window, highest sequence number) once `sequence` is accepted, which is not in the window yet; int64 [] all."""
    ahead, behind = _within(sequence - highest, numbers), _within(highest - sequence, numbers)
    kept = tf1.bitwise.bitwise_and(tf1.bitwise.left_shift(window, ahead), numbers(ALL))
    return tf1.bitwise.bitwise_or(kept, tf1.bitwise.left_shift(numbers(1), behind)), tf1.maximum(highest, sequence)


def _within(distance: Tensor, numbers: Numbers) -> Tensor:
    return tf1.clip_by_value(distance, numbers(0), numbers(WINDOW_SIZE))
