"""The training loop of a worker: sessions on a view, the hooks around a run, the steps of each mode, and the parts put
together.

Reaches the coordinator through the protocol ControlPlane alone.  May use every other room of psruntime.graph.
"""
