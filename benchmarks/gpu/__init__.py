"""Trials of jobs whose workers compute on a GPU, beside plain TensorFlow in one process on the same GPU.

`make gpu` runs them all (__main__.py), and prints one table.
"""
