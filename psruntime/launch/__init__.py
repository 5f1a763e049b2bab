"""Jobs of several processes: which task of which cluster a process is, and the processes that others start.

A task's cluster is that of flags, TF_CONFIG or Slurm, among which `sources` chooses.  `watch` runs a job on this
machine, for `psruntime run`, and `colocated_ps` the ps beside a worker.  `children` starts, restarts and ends
processes; it depends on their command lines, log lines and exit codes alone.
Imports no TensorFlow: the role decides how TensorFlow has to be set up.
"""
