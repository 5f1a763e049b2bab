"""psruntime: parameter-server training of TensorFlow graphs.  A model module imports these names."""

from psruntime.model import Context, ModelSpec

__all__ = ["Context", "ModelSpec"]
