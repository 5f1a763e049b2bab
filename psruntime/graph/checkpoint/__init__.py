"""Checkpoints: their content, the snapshot that they are written from, the files, the folder, and the best one.

May use step and the rooms below it.
"""
