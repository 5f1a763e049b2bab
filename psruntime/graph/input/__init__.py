"""The user's data: the layout of a batch, and the stream of batches that a worker draws from input_fn, and
what becomes of a batch that the user's code cannot process.

May use base.
"""
