"""What TensorFlow itself needs, with nothing of psruntime's training in it: its environment and memory, the server,
device names, threads, and what its errors mean.  Uses no other room of psruntime.graph.
"""
