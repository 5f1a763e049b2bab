"""Cluster sources: how a process finds which task of which cluster it is.

Every source returns a `cluster_task`; `tf_config` reads TF_CONFIG, `slurm` the environment of a Slurm step,
`host_lists` the flags --ps-hosts and --worker-hosts; `sources` chooses among them.  Imports no TensorFlow: the role
decides how TensorFlow has to be imported.
"""
