"""Metrics for Prometheus: what each process tells of itself over HTTP, and ps 0 of the job."""
