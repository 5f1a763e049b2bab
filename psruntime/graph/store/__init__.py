"""Variables on the ps, and gradients: how a bucket is held, how a gradient is kept and travels, who may write.  Runs on
the ps, as do graph/update and graph/push; knows nothing of the user's model.
"""
