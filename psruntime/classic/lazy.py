"""What `psruntime` gives out only when it is asked for, because it imports TensorFlow."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from psruntime.graph.base import environment
from psruntime.observe.outputs import open_closed


def tf1() -> Any:
    """`tensorflow.compat.v1`, imported in the environment that psruntime needs."""
    open_closed()
    environment.prepare()
    return importlib.import_module("tensorflow.compat.v1")


def MonitoredTrainingSession() -> Any:
    """The function of this name; TensorFlow is imported with it."""
    tf1()
    return importlib.import_module("psruntime.classic.training_session").MonitoredTrainingSession


def Supervisor() -> Any:
    """The class of this name; TensorFlow is imported with it."""
    tf1()
    return importlib.import_module("psruntime.classic.supervisor").Supervisor


def embedding() -> Any:
    """The function of this name; TensorFlow is imported with it.  A model of plain TensorFlow may call it too."""
    if "tensorflow" not in sys.modules:
        tf1()
    return importlib.import_module("psruntime.graph.embedding.embedding").embedding
