"""Settings: of a job, of a process, of a worker.

Texts come in, of flags, of a job file and of the environment; frozen dataclasses go out, checked.
`settings` declares a setting with its help, `values` and `schedule` read texts.  Start with `job_settings`, then `job`,
whose `JobConfig` is checked, also for what settings need of each other, and `process`.
"""

from psruntime.config.job import JobConfig

__all__ = ["JobConfig"]
