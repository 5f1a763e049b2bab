"""The user's data: the layout of a batch, the stream of batches that a worker draws from input_fn, without an end or by
data shards, batches of any size, and batches that the user's code cannot process.

May use base and core/shards.
"""
