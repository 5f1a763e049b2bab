"""The launcher: what `psruntime run` needs to start all processes of a job on this machine and to watch over them.

`processes` says what runs with which command line, `children` starts and restarts and ends it, `backoff` decides
whether and when something is started again, `progress` shows the progress line, `watch` puts them together.  It knows
the processes by their command lines, log lines and exit codes alone: it uses psruntime.config, psruntime.settings and
psruntime.errors, and no other part of psruntime.
"""
