"""What became of every push and every byte: ledgers, the job's accounts, the traffic of members, the saved state.

May use core/members, core/shards and core/plan; does not know clocks, rounds or recovery.
"""
