"""Data shards: which ranges of the input are to be read in an epoch, who reads which, and what of them is done.

May use nothing else of core.
"""
