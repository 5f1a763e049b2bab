"""Tools for the operations and values of any graph: walks over it, copies of a part, seeds, and values that are made,
copied or moved in chunks.  Depends on nothing of psruntime's training.
"""
