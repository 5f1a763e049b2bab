"""Metrics for Prometheus over HTTP: each process exports its own, and ps 0 those of the job."""
