"""Buckets: how one is stored on its ps, its gradient and how that travels, what an update makes of it, and which chief
may write it.  Depends on nothing of the user's model.
"""
