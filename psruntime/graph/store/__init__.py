"""The variables on the ps, and everything that runs beside them: buckets and their counters, gradients, optimizers, the
guarded update, the sums of rounds, and the messages of a run.  Runs on the ps; knows nothing of the user's model.
May use base.
"""
