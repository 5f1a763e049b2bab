"""Every way that TF1 has of making and reading variables, a small model each."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from tests.graph.model import making_models as making
from tests.graph.model import reading_models as reading
from tests.graph.model import training_models as training
from tests.support.small_models import ROWS, Build, error, get, linear, of_kernel, of_table

TABLE: dict[str, Build] = {
    "get_variable": of_kernel(lambda: get("kernel", [5, 1])),
    "get_variable of the old kind": of_kernel(lambda: get("kernel", [5, 1], use_resource=False)),
    "get_variable from an array": of_kernel(lambda: tf1.get_variable("k", initializer=np.ones([5, 1], np.float32))),
    "get_variable with a caching device": of_kernel(lambda: get("kernel", [5, 1], caching_device="/device:CPU:0")),
    "Variable": of_kernel(lambda: tf1.Variable(tf1.ones([5, 1]))),
    "Variable from a function": of_kernel(lambda: tf1.Variable(lambda: tf1.random.uniform([5, 1], seed=1))),
    "Variable of TF2": of_kernel(lambda: tf.Variable(tf1.ones([5, 1]))),
    "float64": lambda x, y, _: linear(tf1.cast(x, tf1.float64), get("kernel", [5, 1], dtype=tf1.float64),
                                      tf1.cast(y, tf1.float64)),
    "scalar": lambda x, y, _: error(tf1.reduce_sum(x, 1) * get("scale", []), y),
    "explicit reuse": making.explicit_reuse,
    "reuse as needed": making.auto_reuse,
    "template": making.template,
    "custom getter": making.custom_getter,
    "partitioned by rows": of_kernel(lambda: get("kernel", [5, 1], partitioner=tf1.fixed_size_partitioner(2))),
    "partitioned by columns": lambda x, y, _: error(tf1.reduce_sum(tf1.matmul(x, get(
        "kernel", [5, 3], partitioner=tf1.fixed_size_partitioner(2, axis=1))), 1), y),
    "partitioned table": of_table(tf1.nn.embedding_lookup, partitioner=tf1.fixed_size_partitioner(3)),
    "initialized by another's initialized_value": making.from_another(lambda v: v.initialized_value() * 2.0),
    "initialized by another's value": making.from_another(lambda v: v * 2.0),
    "initialized one after the other": making.twice_from_another,
    "layers.dense": making.tf1_dense,
    "layers.conv2d": making.tf1_conv,
    "layers.batch_normalization": making.tf1_batch_norm,
    "Keras layer": making.keras_layer,
    "Keras model with batch norm": making.keras_model,
    "Keras recurrent": making.keras_recurrent,
    "dynamic_rnn": making.dynamic_rnn,
    "gather of a dense variable": lambda x, y, ids: linear(
        tf1.gather(v := get("table", [ROWS, 5]), ids) + x * tf1.reduce_sum(v), get("head", [5, 1]), y),
    "gather": of_table(tf1.gather),
    "gather_nd": of_table(lambda v, ids: tf1.gather_nd(v, ids[:, tf1.newaxis])),
    "embedding_lookup": of_table(tf1.nn.embedding_lookup),
    "embedding_lookup_sparse": reading.sparse_ids,
    "feature column": reading.feature_column,
    "slices of a variable": lambda x, y, _: error(tf1.reduce_sum(x * get("v", [3, 5])[1], 1), y),
    "tied weights": reading.tied,
    "cond v1": reading.under(False, reading.branches),
    "cond v2": reading.under(True, reading.branches),
    "while v1": reading.under(False, reading.while_loop),
    "while v2": reading.under(True, reading.while_loop),
    "lookup in a while v1": reading.under(False, reading.lookup_in_loop),
    "lookup in a while v2": reading.under(True, reading.lookup_in_loop),
    "map_fn": reading.mapped,
    "scan": reading.scanned,
    "function": reading.in_function,
    "custom gradient": reading.custom_gradient,
    "gradients in the loss": reading.penalized,
    "frozen variable": training.frozen_dense,
    "frozen table": of_table(tf1.nn.embedding_lookup, trainable=False),
    "counter": training.counted,
    "moving averages": training.averaged,
    "metrics": training.with_metrics,
    "hash table": reading.hash_table,
    "global step": training.annealed,
    "regularizer": training.regularized,
    "constraint": training.constrained,
    "summaries": training.summarized,
    "optimizer of whole variables": training.by_norm,
    "optimizers by pattern": training.by_pattern,
    "frozen table in parts": of_table(
        tf1.nn.embedding_lookup, trainable=False, partitioner=tf1.fixed_size_partitioner(3)),
    "variable that is not used": training.untrained,
}  # fmt: skip
