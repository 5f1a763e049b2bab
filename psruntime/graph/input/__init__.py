"""The user's data: the layout of a batch, and the stream of batches that a worker draws from input_fn.

May use base.
"""
