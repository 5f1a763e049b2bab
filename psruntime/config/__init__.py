"""Settings: of a job, of a process, of a worker.

Texts come in, of flags, of a job file and of the environment; frozen dataclasses go out, checked.
`settings` declares a setting with its help, `values` and `schedule` read texts, `devices` those of a worker's devices.
Start with `job_settings`, then `rules`, what settings need of each other, `job`, whose `JobConfig` is checked, and
`process`.
"""

from psruntime.config.job import JobConfig

__all__ = ["JobConfig"]
