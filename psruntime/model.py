"""What a user writes: a module with `input_fn(context)` and `model_fn(features, labels, mode)`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psruntime.errors import UsageError
from psruntime.settings import suggestion
from psruntime.usercode import blame

TRAIN = "train"
EVAL = "eval"
NEEDS = {"psruntime.examples.digits": {"sklearn": "scikit-learn"}}  # what a plain install lacks: module, project


@dataclass(frozen=True)
class Context:
    """What `input_fn` is told.

    `mode` is "train" or "eval".  `seed` differs from worker to worker, so that shuffles do; `num_workers`
    is the number that the job starts with (workers may come and go).
    """

    mode: str
    worker_index: int
    num_workers: int
    batch_size: int
    data_dir: str
    seed: int


Factory = Callable[[Any], Any]
Rate = float | Callable[[int], float]


@dataclass(frozen=True)
class ModelSpec:
    """What `model_fn` returns.

    loss: scalar float tensor.  With mode "train" it must depend on the trainable variables.
    optimizer: makes a `tf.compat.v1.train.Optimizer` from a learning-rate tensor; called once a bucket,
        so an optimizer class, or a `functools.partial` of one, is what to give.  Several: a mapping from
        patterns of variable names (as of `fnmatch`) to such; the first that matches a name counts.
    learning_rate: a number, or a function from the global step to one; evaluated outside the graph.  With several
        optimizers it may be a mapping with the same patterns.
    predictions: anything; for the user's own use.
    metrics: name -> (value, update) as `tf.compat.v1.metrics` makes them; used with mode "eval".
    clip_norm: limit of the norm of all gradients together, greater than 0, as `tf.clip_by_global_norm` takes it.
    clip_value: limit of the magnitude of every entry of a gradient, greater than 0, as `tf.clip_by_value` takes it.
        At most one of the two; duplicate rows of a sparse gradient are summed first.
    examples: scalar numeric tensor, the weight of this batch among those of a round, and of a mini-batch among those
        of a step; what weighs 0 counts for nothing.  None stands for the leading dimension of the features.
    updates: operations that every training step runs beside the gradient, whatever the loss is: those that change
        moving averages.  None stands for the collection `tf.GraphKeys.UPDATE_OPS`.  The layers of tf_keras do not
        fill it; give `layer.updates`.
    hooks: `tf.compat.v1.train.SessionRunHook`s; they see the training steps of this worker, and no other runs.
        One that requests a stop ends this worker's training, and the job when no worker trains any more; in mode sync
        at once.
    """

    loss: Any
    optimizer: Factory | Mapping[str, Factory] | None = None
    learning_rate: Rate | Mapping[str, Rate] = 1e-3
    predictions: Any = None
    metrics: Mapping[str, tuple[Any, Any]] | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    examples: Any = None
    updates: Sequence[Any] | None = None
    hooks: Sequence[Any] = ()


@dataclass(frozen=True)
class Model:
    """The two functions of a model module.  `input_fn` gives a tf.data.Dataset of (features, labels)."""

    name: str
    input_fn: Callable[[Context], Any]
    model_fn: Callable[[Any, Any, str], ModelSpec]


def find_model(name: str) -> None:
    """Looks for a model module without importing it, so that a wrong name is known before anything is started.

    Raises:
        UsageError: there is no such module, or it is an example that needs a package that is not installed.
    """
    _check_name(name)
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise _not_found(name, f"No module named '{package}'")
    for needed, project in NEEDS.get(name, {}).items():
        if importlib.util.find_spec(needed) is None:
            raise _lacks(name, project)


def load_model(name: str) -> Model:
    """Imports a model module by its dotted name.

    Raises:
        UsageError: there is no such module, it fails while it is imported, or it lacks one of the two functions.
    """
    _check_name(name)
    try:
        with blame(f"model module '{name}'", passing=(ModuleNotFoundError,)):
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if project := NEEDS.get(name, {}).get(str(error.name).partition(".")[0]):
            raise _lacks(name, project) from error
        if name == error.name or name.startswith(f"{error.name}."):
            raise _not_found(name, str(error)) from error
        with blame(f"model module '{name}'"):  # it is there, and imports something that is not
            raise
    for function in ("input_fn", "model_fn"):
        if not callable(getattr(module, function, None)):
            raise UsageError(f"model module '{name}' ({module.__file__}) has no function {function}")
    return Model(name, module.input_fn, module.model_fn)


def _check_name(name: str) -> None:
    module = name.removesuffix(".py").removeprefix("./").replace("/", ".")
    if name != module and module.replace(".", "").isidentifier():
        raise UsageError(f"--model takes the name of a module, not of its file: --model {module} instead of {name}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise _not_found(name, "this is no name of a module")


def _not_found(name: str, why: str) -> UsageError:
    hint = suggestion(name, [path.stem for path in Path().glob("*.py")])
    where = "--model takes a dotted name, for example psruntime.examples.digits, found from the current folder or "
    return UsageError(f"model module '{name}' cannot be imported: {why}{hint or f'; {where}PYTHONPATH'}")


def _lacks(name: str, project: str) -> UsageError:
    return UsageError(
        f"model '{name}' needs {project}, which is not installed: pip install 'psruntime[examples]', "
        "or give a model of your own with --model (psruntime init my_model writes one)"
    )
