"""psruntime: parameter-server training of TensorFlow graphs.

A model module imports Context and ModelSpec.  A script with a loop of its own imports tf1, which is
tensorflow.compat.v1, and MonitoredTrainingSession; TensorFlow is imported when one of these two is asked for.
"""

from typing import TYPE_CHECKING, Any

from psruntime.model import Context, ModelSpec

if TYPE_CHECKING:
    from psruntime.classic.training_session import MonitoredTrainingSession

    tf1: Any

__version__ = "0.1.0"
__all__ = ["Context", "ModelSpec", "MonitoredTrainingSession", "tf1"]


def __getattr__(name: str) -> Any:
    if name not in ("MonitoredTrainingSession", "tf1"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from psruntime.classic import lazy

    value = lazy.tf1() if name == "tf1" else lazy.monitored_training_session()
    globals()[name] = value
    return value
