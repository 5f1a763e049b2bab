"""Who takes part in the job: leases and incarnations, views, phases, the fence, and their messages.

Plain data and small tables.  May use core/plan, because a join brings the variables of a model, and core/shards,
because the chief reports how far the variables are with the input.
"""
