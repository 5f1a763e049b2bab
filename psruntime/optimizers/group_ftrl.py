"""FTRL with a group lasso: rows that are of no use become zero as a whole."""

from __future__ import annotations

from math import prod
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.optimizers.rows import ByRows, Rows


class GroupFtrl(ByRows, tf1.train.FtrlOptimizer):  # type: ignore[misc]
    """FTRL-proximal with the sparse group lasso: its l21 makes whole rows zero, its l1 single entries.

    For each row that the gradient g names, all rows of a dense one, with d entries in a row:

        n' = n + g^2
        z' = z + g - (sqrt(n') - sqrt(n)) / learning_rate w
        u  = clip(z', -l1, l1) - z'
        w' = 0                                                       if ||u|| <= l21 sqrt(d), with the norm of the row
        w' = (1 - l21 sqrt(d) / ||u||) u / ((beta + sqrt(n')) / learning_rate + 2 l2)        otherwise

    Other rows stay as they are.  A row is an entry along the first axis; of a scalar it is the scalar.  With l21 = 0 it
    is `tf.compat.v1.train.FtrlOptimizer`, whose l1, l2 and beta these are.

    Source: FTRL-proximal of McMahan et al., Ad click prediction: a view from the trenches, KDD 2013; the group lasso in
    it of Ni et al., Feature selection for Facebook feed ranking system via a group-sparsity-regularized training
    algorithm, CIKM 2019; with l1 and sqrt(d) as Yue et al., Adaptive optimizers with sparse group lasso for neural
    networks in CTR prediction, ECML PKDD 2021, whose code, `SparseGroupFtrlOptimizer` of TFPlus, has this formula.

    Slots `accum`, n, and `linear`, z, of the variable's shape and dtype.  They have the names that FtrlOptimizer gives
    them (`w/Ftrl`, `w/Ftrl_1`), so each of the two continues from a checkpoint of the other.
    """

    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l21_regularization_strength: float = 0.0,
        beta: float = 0.0,
        name: str = "Ftrl",
    ) -> None:
        """Makes the optimizer.

        Args:
            learning_rate: A number or scalar tensor, above 0.
            initial_accumulator_value: Of n, at least 0.
            l1_regularization_strength: At least 0.
            l2_regularization_strength: At least 0.
            l21_regularization_strength: At least 0.
            beta: As that of FtrlOptimizer.
            name: Of the slots.

        Raises:
            ValueError: one of the strengths or the initial value is negative.
        """
        if l21_regularization_strength < 0:
            raise ValueError(f"l21_regularization_strength ({l21_regularization_strength}) must be at least 0")
        super().__init__(
            learning_rate,
            initial_accumulator_value=initial_accumulator_value,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            beta=beta,
            name=name,
        )
        self._l21 = l21_regularization_strength

    def update_rows(self, gradient: Any, variable: Any, rows: Rows) -> Any:
        """As ByRows."""
        n, z = self.get_slot(variable, "accum"), self.get_slot(variable, "linear")
        dtype = variable.dtype.base_dtype
        rate, l1, l2_with_beta = (
            tf1.cast(number, dtype)
            for number in (
                self._learning_rate_tensor,
                self._l1_regularization_strength_tensor,
                self._adjusted_l2_regularization_strength_tensor,
            )
        )
        before = rows.read(n)
        after = before + tf1.square(gradient)
        linear = rows.read(z) + gradient - (tf1.sqrt(after) - tf1.sqrt(before)) / rate * rows.read(variable)
        pulling = tf1.clip_by_value(linear, -l1, l1) - linear
        least = tf1.constant(self._l21 * prod(variable.shape.as_list()[1:]) ** 0.5, dtype)
        norm = tf1.sqrt(tf1.reduce_sum(tf1.square(pulling), axis=list(range(1, gradient.shape.rank)), keepdims=True))
        shrunk = pulling * tf1.maximum(1 - tf1.div_no_nan(least, norm), 0)
        moved = tf1.div_no_nan(shrunk, tf1.sqrt(after) / rate + 2 * l2_with_beta)
        return rows.write((n, after), (z, linear), (variable, moved))
