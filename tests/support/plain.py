"""A model trained by plain TensorFlow in one process: the yardstick of the cluster tests.

Run as `python -m tests.support.plain MODEL DATA_DIR BATCH_SIZE STEPS SEEDS`: one training for each seed below SEEDS;
prints the metrics of all as a JSON list.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from psruntime.graph.base import environment
from psruntime.model import Context, Model


def main() -> None:
    environment.prepare(10.0)
    from psruntime.model import load_model

    name, data_dir, batch_size, steps, seeds = sys.argv[1:]
    model = load_model(name)
    print(json.dumps([train(model, data_dir, int(batch_size), int(steps), seed) for seed in range(int(seeds))]))


def train(model: Model, data_dir: str, batch_size: int, steps: int, seed: int) -> dict[str, float]:
    """The model's metrics on the held-out data after so many steps."""
    import tensorflow.compat.v1 as tf1

    from psruntime.graph.input.input_stream import InputStream

    training, held_out = (
        InputStream(model, Context(mode, 0, 1, batch_size, data_dir, seed)) for mode in ("train", "eval")
    )
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(seed)
        with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            features, labels, batch = training.layout.placeholders()
            spec = model.model_fn(features, labels, "train")
            assert spec.optimizer is not None
            rate = tf1.placeholder(tf1.float32, [])
            update = spec.optimizer(rate).minimize(spec.loss)
            features, labels, eval_batch = held_out.layout.placeholders()
            metrics: Any = model.model_fn(features, labels, "eval").metrics
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        for step in range(steps):
            value = spec.learning_rate(step) if callable(spec.learning_rate) else spec.learning_rate
            session.run(update, {rate: value, **dict(zip(batch, training.draw_endlessly(), strict=True))})
        while (drawn := held_out.draw()) is not None:
            session.run([u for _, u in metrics.values()], dict(zip(eval_batch, drawn, strict=True)))
        return {name: float(session.run(value)) for name, (value, _) in metrics.items()}


if __name__ == "__main__":
    main()
