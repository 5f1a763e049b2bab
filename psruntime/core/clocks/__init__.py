"""Mode bounded: the clocks of a view, how often workers report them, and which workers the others may soon wait for.

May use core/members and core/plan; does not know rounds, accounting or recovery.
"""
