"""The training loop of a worker: the steps of each mode, and all parts put together.

May use every other room of psruntime.graph.
"""
