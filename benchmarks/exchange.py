"""Steps per second of a step that is pull, push and apply and little else: ours and TensorFlow's.

    python -m benchmarks.exchange [--runs 3] [--seconds 10] [--ps 1,2] [--pipeline 1] [--quick] [--json]

The variables are the trainable ones of MobileNetV2 for images of 96 x 96; Adam, mode async, one worker.  The network
itself is not computed: see exchange_model.py.  The peer is stock TensorFlow's between-graph training; the runs
alternate.  Output as of async_steps.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from benchmarks.async_steps import measure, text_of
from benchmarks.command_line import numbers, parser_of, print_result
from benchmarks.exchange_model import Exchange, Shape
from psruntime.examples import mobilenet_v2

QUICK = {"runs": 1, "seconds": 4.0, "ps": [1], "pipeline": [1]}


def shapes_of_mobilenet() -> list[Shape]:
    with tf1.Graph().as_default():
        images = tf1.placeholder(tf1.float32, [None, mobilenet_v2.SIDE, mobilenet_v2.SIDE, 3])
        mobilenet_v2.model_fn(images, tf1.placeholder(tf1.int64, [None]), "train")
        return [tuple(variable.shape.as_list()) for variable in tf1.trainable_variables()]


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured in each run")
    parser.add_argument("--ps", type=numbers, default="1,2")
    parser.add_argument("--pipeline", type=numbers, default="1", help="of ours")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    shapes = shapes_of_mobilenet()
    workloads = [Exchange("MobileNetV2 96 x 96", shapes, "AdamOptimizer", ps) for ps in arguments.ps]
    print_result(
        arguments,
        lambda say: measure(workloads, arguments.pipeline, "stock", arguments.runs, arguments.seconds, say),
        text_of,
    )


if __name__ == "__main__":
    main()
