"""Hooks around the steps of a session: checkpoints, replicas, summaries, traces, and the hooks of the model."""
