"""The graph of a training step, built once for each worker: the push step of the modes async and bounded, and the round
step of mode sync.  Connects model to push.  May use model and the rooms below it.
"""
