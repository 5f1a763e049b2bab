"""Processes that others start: all of a job on this machine, by `psruntime run`, and the ps beside a worker.

`processes` says what runs with which command line, `children` starts and restarts and ends it, `backoff` decides
whether and when something is started again, `progress` shows the progress line, `watch` puts them together.
`colocated_ps` is the child of a worker.  The room knows the processes by their command lines, log lines and exit codes
alone: it uses psruntime.config and psruntime.errors, and no other part of psruntime.
"""
