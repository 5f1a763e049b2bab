"""The user's model: how its variables are captured and read from the ps, its gradients, its local steps, and its
evaluation.  Runs on the worker.  May use input, embedding, push, buckets and base.
"""
