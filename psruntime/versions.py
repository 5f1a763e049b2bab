"""What differs between the versions of protobuf that pyproject.toml allows, and with them of TensorFlow.

It imports neither, so that every room may ask it; grpcio's are in rpc/server/any_path.py.
"""

from __future__ import annotations

from typing import Any


def is_repeated(field: Any) -> bool:
    """Whether a field of a message is repeated, by its descriptor: `label` is gone in protobuf 7, and below 6.32 there
    is nothing else.
    """
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)
