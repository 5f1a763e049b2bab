"""A checkpoint evaluated by plain TensorFlow in one process, without psruntime's graphs.

Run as `python -m tests.support.plain_evaluation MODEL CHECKPOINT_DIR BATCH_SIZE`: prints as JSON {"metrics": ...,
"moved": how many of the variables that are not trainable differ from their initial values, "fixed": of how many}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from psruntime.graph.base import environment


def main() -> None:
    environment.prepare(10.0)
    name, folder, batch_size = sys.argv[1:]
    print(json.dumps(evaluation(name, folder, int(batch_size))))


def evaluation(name: str, folder: str, batch_size: int) -> dict[str, Any]:
    import numpy as np
    import tensorflow.compat.v1 as tf1

    from psruntime.graph.input.input_stream import InputStream
    from psruntime.model import Context, load_model

    model = load_model(name)
    inputs = InputStream(model, Context("eval", 0, 1, batch_size, "", 0))
    with tf1.Graph().as_default(), tf1.Session() as session:
        features, labels, batch = inputs.layout.placeholders()
        spec = model.model_fn(features, labels, "eval")
        examples = tf1.placeholder(tf1.float32, [])
        metrics = {"loss": tf1.metrics.mean(spec.loss, weights=examples), **(spec.metrics or {})}
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        fixed = [v for v in tf1.global_variables() if not v.trainable]
        before = session.run(fixed)
        tf1.train.Saver(tf1.global_variables()).restore(session, tf1.train.latest_checkpoint(folder))
        after = session.run(fixed)
        while (drawn := inputs.draw()) is not None:
            feed = {examples: inputs.examples(drawn), **dict(zip(batch, drawn, strict=True))}
            session.run([update for _, update in metrics.values()], feed)
        return {
            "metrics": {key: float(session.run(value)) for key, (value, _) in metrics.items()},
            "moved": sum(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)),
            "fixed": len(fixed),
        }


if __name__ == "__main__":
    main()
