"""Logs, records and tables: how a process and a job show themselves to an operator."""
