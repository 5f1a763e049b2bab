"""The training loop of a worker: sessions on a view, the hooks around a run, and the steps of each mode.

Reaches the coordinator through the protocol ControlPlane alone.  May use every other room of psruntime.graph.
"""
