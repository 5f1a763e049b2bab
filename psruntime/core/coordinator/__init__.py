"""The coordinator: the state of one job, the rules of its life, and the answers to each member and the operator.

`Coordinator` alone changes `JobState`; rules, instructions and status read it.  May use every other room of core.
"""
