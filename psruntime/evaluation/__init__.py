"""The metrics of checkpoints: their history as a file, and early stopping of a job whose metric gets no better.

Standard library only; graph/checkpoint/measured.py measures.
"""
