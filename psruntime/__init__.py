"""psruntime: parameter-server training of TensorFlow graphs.

A model module needs `ModelSpec`, and `Context` for its annotations.  A script with its own loop needs
`MonitoredTrainingSession` or `Supervisor`, and `tf1`, which is `tensorflow.compat.v1`; `cluster_task` reads TF_CONFIG
for it.  `embedding` is for ids without a vocabulary.  `train` runs a whole job on this machine.  TensorFlow is imported
when one of these is first used, except `cluster_task` and `train`, so that its environment can be set before.
"""

import sys
from typing import TYPE_CHECKING, Any

# Under `python -m psruntime` the current folder is first: its files would replace modules that psruntime needs.  What
# loads a model looks there last (model.py).
if (
    sys.argv[:1] == ["-m"]
    and any(word.startswith("psruntime") for word in sys.orig_argv)
    and not getattr(sys.flags, "safe_path", False)
):
    sys.path.pop(0)

from psruntime.launch.tf_config import cluster_task
from psruntime.model import Context, ModelSpec

if TYPE_CHECKING:
    from psruntime.classic.supervisor import Supervisor
    from psruntime.classic.training_session import MonitoredTrainingSession
    from psruntime.graph.embedding.embedding import embedding
    from psruntime.launch.python_job import train

    tf1: Any

__version__ = "0.1.0"
__all__ = [
    "Context",
    "ModelSpec",
    "MonitoredTrainingSession",
    "Supervisor",
    "cluster_task",
    "embedding",
    "tf1",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "train":
        from psruntime.launch.python_job import train

        return train
    if name not in ("MonitoredTrainingSession", "Supervisor", "embedding", "tf1"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from psruntime.classic import lazy

    value = globals()[name] = getattr(lazy, name)()
    return value
