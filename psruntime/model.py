"""The user's model: a module with `input_fn(context)` and `model_fn(features, labels, mode)`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from psruntime.config.settings import Params, Value, suggestion
from psruntime.errors import UsageError
from psruntime.faults import blame

TRAIN = "train"
EVAL = "eval"
NEEDS = {"psruntime.examples.digits": {"sklearn": "scikit-learn"}}  # (module, project) that a plain install lacks


def input_seed(seed: int, worker: int, began_at: int) -> int:
    """The seed of a worker's input: `seed + worker` in a process that started with the job.

    One that started at a later global step has a number of its own, 0 to 2^31 - 1, so that it reads in another order.
    """
    if not began_at:
        return seed + worker
    return int.from_bytes(hashlib.sha256(f"{seed} {worker} {began_at}".encode()).digest()[:4], "big") >> 1


class _Params(dict[str, Value]):
    """The parameters by name; one that is missing is an error that says how it is given."""

    def __missing__(self, name: object) -> NoReturn:
        raise KeyError(f"{name}; it is given with --set {name}=VALUE")


def params_by_name(params: Params) -> Mapping[str, Value]:
    """What input_fn and model_fn receive: it cannot be changed."""
    return MappingProxyType(_Params(params))


@dataclass(frozen=True)
class Context:
    """The argument of `input_fn(context)`.

    Attributes:
        mode: "train" or "eval".
        worker_index: this worker's index, from 0.
        num_workers: `--min-workers`, the number that the job starts with; workers may join and leave.
        batch_size: `--batch-size`, the examples of one mini-batch; with `--devices` each device has one.
        data_dir: `--data-dir`; empty if the flag was not given.
        seed: of `--seed`, the worker's index and the global step at which its process started (`input_seed`), so that
            shuffles differ from worker to worker and each time that its process is started.
        eval_batches: `--eval-batches`, the batches that an evaluation reads of the dataset; None: all.
        cut: implements `shards`; set by psruntime.
        params: the parameters of `--set`, by name; read-only.
    """

    mode: str
    worker_index: int
    num_workers: int
    batch_size: int
    data_dir: str
    seed: int
    eval_batches: int | None = None
    cut: Callable[[int, int | None], tuple[Any, Any]] | None = field(default=None, repr=False, compare=False)
    params: Mapping[str, Value] = field(default_factory=partial(params_by_name, ()), compare=False)

    def shards(self, examples: int, size: int | None = None) -> tuple[Any, Any]:
        """Reads the input in shards that the coordinator assigns; returns (begin, end), two int64 scalars.

        The dataset that `input_fn` returns shall read the range begin..end-1 of all `examples`, which may be examples,
        lines or files: any unit that you count in. In training it is iterated once for each shard, with another range,
        and must end. In evaluation the range is 0..examples-1.

        Each worker reads shard after shard; those that a lost worker had not finished are read by another. So in each
        epoch every example is counted at least once, and exactly once without faults.

        Args:
            examples: Their number, the same on every worker, from 1.
            size: Of a shard, from 1, the same on every worker. Less than this is read again after a loss for each shard
                that a worker had started. By default 8 batches.

        Raises:
            UsageError: A number is out of range, or this is called for the second time.
        """
        return self.cut(examples, size) if self.cut else (0, examples)


Factory = Callable[[Any], Any]
Rate = float | Callable[[int], float]


@dataclass(frozen=True)
class ModelSpec:
    """The result of `model_fn(features, labels, mode)`.

    A mistake in it ends the worker with one line and exit code 2 before it joins.

    Attributes:
        loss: Scalar tensor of a float type, the mean over the batch in mode sync. With mode "train" it must depend on
            the trainable variables. A loss or gradient that is not finite is never applied.
        optimizer: Makes a `tf.compat.v1.train.Optimizer` from a learning-rate tensor; called once for each bucket. Give
            an optimizer class, or a `functools.partial` of one. For several optimizers give a mapping from patterns of
            variable names (as of `fnmatch`) to these; the first pattern that matches a name counts. Needed with mode
            "train".
        learning_rate: A number, or a function from the global step (int) to one, evaluated outside the graph. With
            several optimizers also a mapping with the same patterns. Default 1e-3.
        predictions: A tensor, or tensors by name, which `psruntime export` serves.
        metrics: Name to (value, update) as `tf.compat.v1.metrics` makes them; measured with mode "eval".
        clip_norm: Limit of the global norm of all gradients, greater than 0, as `tf.clip_by_global_norm` takes it. Of
            the joint gradient in mode sync, else of each push.
        clip_value: Limit of the magnitude of every entry of a gradient, greater than 0, as `tf.clip_by_value` takes
            it. Give at most one of the two. Duplicate rows of a sparse gradient are summed first.
        examples: Scalar numeric tensor, the weight of this batch among those of a round, and of a mini-batch among
            those of a step. A batch of weight 0 is ignored. None stands for the leading dimension of the features.
        updates: Operations that every training step runs beside the gradient, also if the loss is not finite, such as
            those that change moving averages. None stands for the collection `tf.GraphKeys.UPDATE_OPS`. The layers of
            tf_keras do not fill it; give `layer.updates`.
        hooks: `tf.compat.v1.train.SessionRunHook`s. They see the training steps of this worker, and no other runs. One
            that requests a stop ends this worker's training, and the job when no worker trains any more; in mode sync
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
    """The functions of a model module.  `input_fn` returns a tf.data.Dataset of (features, labels).

    serving_input_fn: returns the inputs of a served model, see `psruntime export`; None: its features.
    params: what `--set` gives to the two others.
    """

    name: str
    input_fn: Callable[[Context], Any]
    model_fn: Callable[[Any, Any, str], ModelSpec]
    serving_input_fn: Callable[[], Any] | None = None
    params: Params = ()


def find_model(name: str) -> None:
    """Looks for a model module without importing it, so that a wrong name fails before any process is started.

    Raises:
        UsageError: there is no such module, or it is an example that needs a package that is not installed.
    """
    _check_name(name)
    _look_in_current_folder()
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise _not_found(name, f"No module named '{package}'")
    for needed, project in NEEDS.get(name, {}).items():
        if importlib.util.find_spec(needed) is None:
            raise _lacks(name, project)


def unread_params(name: str, params: Params) -> str:
    """That no function of a model module reads parameters, by its text; empty if one may, or there are none.

    The module is not imported.
    """
    is_light = "." not in name or name.startswith("psruntime.")  # to find another one imports its package
    spec = importlib.util.find_spec(name) if params and is_light else None
    if not spec or not spec.origin or not spec.has_location:
        return ""
    text = Path(spec.origin).read_text(errors="replace")
    if "params" in text or not all(f"def {function}(" in text for function in ("input_fn", "model_fn")):
        return ""
    names = ", ".join(each for each, _ in params)
    way = "model_fn has them by an argument params, input_fn as context.params"
    return f"--set {names} has no effect: {name} reads no parameters; {way}"


def load_model(name: str, params: Params = ()) -> Model:
    """Imports a model module by its dotted name, for these parameters.

    Raises:
        UsageError: there is no such module, it fails while it is imported, or it lacks one of the two functions.
    """
    _check_name(name)
    _look_in_current_folder()
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
    by_name = params_by_name(params)

    def input_fn(context: Context) -> Any:
        return module.input_fn(replace(context, params=by_name))

    takes = "params" in inspect.signature(module.model_fn).parameters
    model_fn = partial(module.model_fn, params=by_name) if takes else module.model_fn
    serving = getattr(module, "serving_input_fn", None)
    return Model(name, input_fn if params else module.input_fn, model_fn, serving, params)


def _look_in_current_folder() -> None:
    """Last of all: so a file of the folder is found as a model, and not in place of a module that psruntime needs."""
    if not {"", (here := os.getcwd())} & {*sys.path}:
        sys.path.append(here)


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
