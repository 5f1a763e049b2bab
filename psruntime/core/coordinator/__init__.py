"""The coordinator: the state of one job, the rules of its life, and what each member and the operator are told.

`Coordinator` alone changes `JobState`; rules, instructions and status read it.  May use every other room of core.
"""
