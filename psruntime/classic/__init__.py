"""Scripts that keep their own graph and loop: `psruntime.MonitoredTrainingSession` and `psruntime.tf1`."""
