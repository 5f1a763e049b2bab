"""The peer of a job without machines for its ps: MultiWorkerMirroredStrategy, as its own users write it.

    python -m benchmarks.mirrored --index N --workers HOST:PORT,... --batch-size B --model MODULE

A model module is as strategy.py has it.  Each worker tells its steps as step_times.py does; all of them are in each
update, so their steps are as many as the updates.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib import import_module
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf

from benchmarks.step_lines import EVERY_S
from benchmarks.strategy import step_of
from psruntime import Context


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--workers", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    workers = arguments.workers.split(",")
    task = {"type": "worker", "index": arguments.index}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    train(import_module(arguments.model), arguments.index, len(workers), arguments.batch_size)


def train(module: Any, index: int, workers: int, batch_size: int) -> None:
    """Until the benchmark ends this process."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        trained, loss_of, optimizer = module.model()

    def dataset(_: Any) -> Any:
        return module.input_fn(Context("train", index, workers, batch_size, "", seed=index)).repeat()

    train_step = step_of(strategy, trained, loss_of, optimizer, workers)
    iterator = iter(strategy.distribute_datasets_from_function(dataset))
    done, told_s = 0, 0.0  # told_s: of the system's clock
    while True:
        train_step(iterator)
        done += 1
        now_s = time.time()
        if now_s - told_s >= EVERY_S:
            told_s = now_s
            print(f"steps {done} {now_s} -", flush=True)


if __name__ == "__main__":
    main()
