"""What TensorFlow itself needs, with nothing of psruntime's training in it: device names, the server, seeds, errors of
sessions, threads, and tools that walk or copy graphs.  Uses no other room of psruntime.graph.
"""
