"""Mode sync: who is in a round, who has contributed, who does what next, with how many examples, and the record of what
was applied.

May use core/members, core/shards and core/plan; does not know clocks, accounting or recovery.
"""
