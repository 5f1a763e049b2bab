"""Where the variables of a model live: buckets, slices and their ps.

The plan is a pure function of the variables' specs, the same on every process.  Uses nothing else of core.
"""
