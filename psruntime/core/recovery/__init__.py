"""Decisions after a loss: what a new view starts from, which replica brings variables back, what a ps clears.

Also finds each tensor of the model in a checkpoint.  May use core/members and core/plan; does not know clocks, rounds
or accounting.
"""
