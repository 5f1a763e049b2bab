"""A model trained by plain TensorFlow in one process: the yardstick of the cluster tests.

Run as `python -m tests.support.plain MODEL DATA_DIR BATCH_SIZE STEPS SEED`; prints the metrics as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from psruntime.graph import environment


def main() -> None:
    environment.prepare(10.0)
    import tensorflow.compat.v1 as tf1

    from psruntime.graph.inputs import InputStream
    from psruntime.model import Context, load_model

    name, data_dir, batch_size, steps, seed = sys.argv[1:]
    model = load_model(name)

    def inputs(mode: str) -> InputStream:
        return InputStream(model, Context(mode, 0, 1, int(batch_size), data_dir, int(seed)))

    train, held_out = inputs("train"), inputs("eval")
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(int(seed))
        with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            features, labels, batch = train.placeholders()
            spec = model.model_fn(features, labels, "train")
            assert spec.optimizer is not None and not callable(spec.learning_rate)
            update = spec.optimizer(spec.learning_rate).minimize(spec.loss)
            features, labels, eval_batch = held_out.placeholders()
            metrics: Any = model.model_fn(features, labels, "eval").metrics
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        for _ in range(int(steps)):
            session.run(update, dict(zip(batch, train.draw_endlessly(), strict=True)))
        while (drawn := held_out.draw()) is not None:
            session.run([u for _, u in metrics.values()], dict(zip(eval_batch, drawn, strict=True)))
        print(json.dumps({name: float(session.run(value)) for name, (value, _) in metrics.items()}))


if __name__ == "__main__":
    main()
