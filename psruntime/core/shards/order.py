"""The order in which the shards of an epoch are handed out: scattered, and another one in each epoch.

It steps through the shards by a stride that is drawn from the epoch's number and has no factor in common with how many
there are.  So neighbours in the input come far from each other, and nothing has to be kept of it.
"""

from __future__ import annotations

from math import gcd

_WORD = (1 << 64) - 1


def number_at(place: int, count: int, epoch: int) -> int:
    """The number of the shard at a place of the epoch's order, both from 0 and below `count`."""
    first, stride = _mixed(2 * epoch) % count, 1 + _mixed(2 * epoch + 1) % count
    while gcd(stride, count) != 1:
        stride += 1
    return (first + place * stride) % count


def _mixed(number: int) -> int:
    """64 bits that look random (splitmix64; Steele et al., Fast splittable pseudorandom number generators, 2014)."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & _WORD
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
    return mixed ^ mixed >> 31
