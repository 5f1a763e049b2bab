"""Scripts that keep their own graph and loop: `psruntime.MonitoredTrainingSession`, `Supervisor` and `tf1`."""
