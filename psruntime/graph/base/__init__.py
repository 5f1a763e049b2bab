"""TensorFlow itself, without psruntime's training: its environment and memory, the server and devices, its errors, how
it reads checkpoints, and walks over graphs, seeds and values of variables for any graph.  Uses no other room of
psruntime.graph.
"""
