"""Steering a job while it runs: what an operator changes, and the barrier at which all change together.

Standard library only, no clock.  Members are named by texts; the coordinator has the members themselves.
"""
