"""Traces: the work of a job's processes during some steps, on one clock, recorded, joined and read."""
