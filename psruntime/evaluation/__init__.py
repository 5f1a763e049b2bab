"""What comes of the metrics of checkpoints: they are written down, and a job whose metric gets no better is ended.

Standard library only; graph/checkpoint/measured.py measures.
"""
