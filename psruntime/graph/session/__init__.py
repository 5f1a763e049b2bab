"""A worker's session on a view: how it is opened, the hook that ends it, and what all that works in it has in common.

Reaches the coordinator through the protocol ControlPlane alone.
"""
