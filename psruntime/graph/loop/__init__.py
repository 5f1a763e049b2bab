"""What a worker builds before it joins, and its training loop: the steps of each mode, and all parts put together.

May use every other room of psruntime.graph.
"""
