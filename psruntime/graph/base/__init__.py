"""TensorFlow itself, without psruntime's training: its environment and memory, the server, device names, threads, and
its errors.  Uses no other room of psruntime.graph.
"""
