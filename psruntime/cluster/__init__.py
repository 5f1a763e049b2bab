"""Cluster sources: what tells a process which task of which cluster it is.

`cluster_task` is what every source answers; `tf_config` reads TF_CONFIG, `slurm` the environment of a Slurm step,
`host_lists` the flags --ps-hosts and --worker-hosts; `sources` chooses among them.  Knows no TensorFlow: the role says
how TensorFlow has to be imported.
"""
