"""Prepares the variables of a view: initial values, a restore from a checkpoint or a replica, and the counters after
it.  Runs on the chief.  May use checkpoint and the rooms below it.
"""
