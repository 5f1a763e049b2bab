"""The coordinator: the state of one job, the rules of its life, and the answers to each member and the operator.

`Coordinator` takes the inputs, and changes `JobState` with transitions.py and steered.py.  Rules, instructions and
status read it.  May use every other room of core.
"""
