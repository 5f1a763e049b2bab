"""Processes that others start: all of a job on this machine, by `psruntime run`, and the ps beside a worker.

`processes` has the command lines, `children` starts, restarts and ends the processes, `backoff` decides whether and
when one is started again, `progress` shows the progress line, `watch` runs the job with these.
`colocated_ps` is the child of a worker.  The room depends on the command lines, log lines and exit codes of processes
alone: it uses psruntime.config and psruntime.errors, and no other part of psruntime.
"""
