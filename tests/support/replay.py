"""Repeats a sync training from its rounds log, in one process with plain TensorFlow, and compares the outcome.

The zygote runs it as a process of its own; its one argument is JSON:
{"model": module, "rounds_log": path, "checkpoint_dir": path, "batch_sizes": {worker index: examples},
"local_steps": mini-batches of a contribution}.
Prints {"rounds": number, "largest": {variable or slot: largest difference over its largest entry}}.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def records_of(path: str | Path) -> list[dict[str, Any]]:
    """What a rounds log has so far.  The file may be growing: a last line without its end is left for later."""
    whole, _, _ = Path(path).read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def rounds_of(path: str) -> list[dict[str, Any]]:
    """The closed rounds that the final variables hold, in order: what a rollback undid is left out."""
    rounds: list[dict[str, Any]] = []
    for record in records_of(path):
        if record["record"] == "prepared":
            rounds = [r for r in rounds if r["global_step"] <= record["global_step"]]
        elif record["record"] == "round" and record["applied"]:
            rounds.append(record)
    assert [r["global_step"] for r in rounds] == list(range(1, len(rounds) + 1))
    return rounds


class Batches:
    """One worker's batches by number; a number may come twice, but never one before the last."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._next, self._last = 0, None

    def take(self, number: int) -> Any:
        assert number >= self._next - 1, f"batch {number} after {self._next - 1}"
        while self._next <= number:
            self._last = self._stream.draw_endlessly()
            self._next += 1
        return self._last


def main(argv: list[str]) -> int:
    import numpy as np
    import tensorflow.compat.v1 as tf1

    from psruntime.graph.input.input_stream import InputStream
    from psruntime.model import Context, load_model

    order = json.loads(argv[0])
    model = load_model(order["model"])
    sizes = {int(worker): size for worker, size in order["batch_sizes"].items()}
    batches: dict[str, Batches] = {}  # by incarnation: each process begins its input anew
    last = tf1.train.latest_checkpoint(order["checkpoint_dir"])
    first = tf1.train.load_checkpoint(f"{order['checkpoint_dir']}/model.ckpt-0")
    rounds = rounds_of(order["rounds_log"])

    def summed(gradient: Any) -> Any:
        """Without duplicate rows: the limits are of the joint gradient, and a row has one entry there."""
        if not isinstance(gradient, tf1.IndexedSlices):
            return gradient
        rows, positions = tf1.unique(gradient.indices)
        return tf1.IndexedSlices(tf1.math.unsorted_segment_sum(gradient.values, positions, tf1.size(rows)), rows)

    def stream(worker: int) -> Any:
        context = Context("train", worker, len(sizes), sizes[worker], "", worker)
        return InputStream(model, context, order.get("local_steps", 1))

    with tf1.Graph().as_default(), tf1.Session() as session:
        features, labels, feeds = stream(min(sizes)).layout.placeholders()
        spec = model.model_fn(features, labels, "train")
        assert spec.optimizer is not None
        variables = tf1.trainable_variables()
        gradients = [summed(g) for g in tf1.gradients(spec.loss, variables)]
        norm = tf1.global_norm(gradients)
        clip_norm, clip_value = spec.clip_norm or np.inf, spec.clip_value or np.inf

        def clipped(values: Any) -> Any:
            scale = clip_norm / tf1.maximum(norm, clip_norm) if spec.clip_norm else 1.0
            return tf1.clip_by_value(values * scale, -clip_value, clip_value)

        gradients = [
            tf1.IndexedSlices(clipped(g.values), g.indices) if isinstance(g, tf1.IndexedSlices) else clipped(g)
            for g in gradients
        ]
        rate = tf1.placeholder(tf1.float32, [])
        update = spec.optimizer(rate).apply_gradients(list(zip(gradients, variables, strict=True)))
        session.run(tf1.global_variables_initializer())
        for variable in variables:
            variable.load(first.get_tensor(variable.op.name), session)
        for step, record in enumerate(rounds):
            parts = []
            for part in record["parts"]:
                incarnation = part["incarnation"]
                if incarnation not in batches:
                    batches[incarnation] = Batches(stream(part["worker"]))
                taken = batches[incarnation].take(part["batch"])
                minibatches = [taken[i : i + len(feeds)] for i in range(0, len(taken), len(feeds))]
                assert sum(len(minibatch[0]) for minibatch in minibatches) == part["examples"]
                parts += minibatches
            joint = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
            value = spec.learning_rate(step) if callable(spec.learning_rate) else spec.learning_rate
            session.run(update, {rate: value, **dict(zip(feeds, joint, strict=True))})
        ours = tf1.train.load_checkpoint(last)
        assert ours.get_tensor("global_step") == len(rounds)
        largest = {}
        for variable in tf1.global_variables():
            name = variable.op.name
            if name == "global_step":  # of a model that reads it; nothing counts it here
                continue
            mine = ours.get_tensor(f"{variables[0].op.name}/{name}" if name.endswith("_power") else name)
            expected = session.run(variable)
            largest[name] = float(np.abs(mine - expected).max() / max(np.abs(expected).max(), 1e-30))
    print(json.dumps({"rounds": len(rounds), "largest": largest}))
    return 0
