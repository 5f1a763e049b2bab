"""Who takes part in the job: leases and incarnations, views, phases, the fence, and what members and coordinator say.

Plain data and small tables.  May use core/plan, because a join brings the variables of a model, and core/shards,
because the chief says how far the variables are with the input.
"""
