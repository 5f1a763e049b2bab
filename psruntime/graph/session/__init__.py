"""Sessions: a worker's on a view, how it is opened, what ends it, and the hooks around its steps that save, summarise
and trace; and the session of a ps with itself, for its fence and its counts.

Reaches the coordinator through the protocol ControlPlane alone.
"""
