"""Adam whose moments move only in the rows that a gradient names."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.optimizers.rows import Rows


class LazyAdam(tf1.train.AdamOptimizer):  # type: ignore[misc]
    """Adam, of a sparse gradient only for the rows that it names.

    With t the number of updates of the whole variable, for each row of the gradient g:

        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g^2
        w = w - learning_rate sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon)

    Other rows keep m, v and w, where `tf.compat.v1.train.AdamOptimizer` decays m and v of every row and moves every w
    by them: a pass over three times the bytes of the table in every step.  So the two differ for a row that is missing
    in some steps.  For a row that is in every step, and for a dense gradient, they are the same.  The correction of the
    bias counts all updates, also those that did not name the row.

    Source: Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015, in the form before its section 2.1;
    lazy as `tf.contrib.opt.LazyAdamOptimizer` and `tfa.optimizers.LazyAdam` are.

    Slots `m` and `v`, of the variable's shape and dtype, and two numbers for all variables, beta1^t and beta2^t.  They
    have the names that AdamOptimizer gives them (`w/Adam`, `w/Adam_1`, `beta1_power`, `beta2_power`), so each of the
    two continues from a checkpoint of the other.

    Args, as those of AdamOptimizer:
        learning_rate: A number or scalar tensor. Default 0.001.
        beta1: Decay of the mean of gradients. Default 0.9.
        beta2: Decay of the mean of their squares. Default 0.999.
        epsilon: Added to the root. Default 1e-8.
        name: Of the slots. Default "Adam".
    """

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._update_rows(grad.values, var, Rows(grad.indices))

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        return self._update_rows(grad, var, Rows(indices))

    def _update_rows(self, gradient: Any, variable: Any, rows: Rows) -> Any:
        numbers = [self._lr_t, self._beta1_t, self._beta2_t, self._epsilon_t, *self._get_beta_accumulators()]
        rate, beta1, beta2, epsilon, power1, power2 = [tf1.cast(n, variable.dtype.base_dtype) for n in numbers]
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        mean = beta1 * rows.read(m) + (1 - beta1) * gradient
        squares = beta2 * rows.read(v) + (1 - beta2) * tf1.square(gradient)
        step = rate * tf1.sqrt(1 - power2) / (1 - power1) * mean / (tf1.sqrt(squares) + epsilon)
        moved = rows.read(variable) - step
        return rows.write((m, mean), (v, squares), (variable, moved))
