"""Which pushes of a worker a bucket has accepted, though several are under way and may arrive in any order.

The window against replays of IPsec (RFC 4303, section 3.4.3): the highest sequence number so far, and a bit for each
of those up to it.  What is older than the window counts as accepted; a worker never has that many under way.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

WINDOW_SIZE = 62  # sequence numbers; as many bits of an int64 as are safe to shift
ALL = (1 << WINDOW_SIZE) - 1


def is_in(window: Any, highest: Any, sequence: Any) -> Any:
    """Whether the sequence number was accepted before; bool [].  All are int64 []."""
    age = highest - sequence
    bit = tf1.bitwise.bitwise_and(tf1.bitwise.right_shift(window, tf1.clip_by_value(age, 0, WINDOW_SIZE)), _one())
    return tf1.logical_and(age >= 0, tf1.logical_or(age >= WINDOW_SIZE, tf1.equal(bit, 1)))


def with_one_more(window: Any, highest: Any, sequence: Any) -> tuple[Any, Any]:
    """(window, highest sequence number) once `sequence` is accepted, which is not in the window yet."""
    ahead = tf1.clip_by_value(sequence - highest, 0, WINDOW_SIZE)
    behind = tf1.clip_by_value(highest - sequence, 0, WINDOW_SIZE)
    kept = tf1.bitwise.bitwise_and(tf1.bitwise.left_shift(window, ahead), tf1.constant(ALL, tf1.int64))
    return tf1.bitwise.bitwise_or(kept, tf1.bitwise.left_shift(_one(), behind)), tf1.maximum(highest, sequence)


def _one() -> Any:
    return tf1.constant(1, tf1.int64)
