"""Variables on the ps, and gradients: how a bucket is stored, how a gradient is stored and sent, and which process may
write.  Runs on the ps, as do graph/update and graph/push; depends on nothing of the user's model.
"""
