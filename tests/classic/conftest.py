"""TensorFlow for the tests of this folder: the environment of a real process, set before the import."""

from psruntime.graph.base import environment
from tests.support.as_built import graphs_as_built

environment.prepare()
__all__ = ["graphs_as_built"]
