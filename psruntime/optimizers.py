"""Optimizers for embedding tables, made like those of `tf.compat.v1.train`, which they also work beside.

An update with a sparse gradient reads and writes the rows that the gradient names, and no other: its cost is that of
these rows, however many the table has.  They work in plain TensorFlow too.

    from psruntime import ModelSpec, optimizers

    ModelSpec(loss, optimizer={"deep/*": optimizers.LazyAdam, "*": tf1.train.AdamOptimizer}, learning_rate=1e-3)

Momentum and RMSProp need no form of their own: those of tf.train move the named rows and slots alone.

Knows TensorFlow alone.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tensorflow.compat.v1 as tf1

__all__ = ["GroupFtrl", "LazyAdam", "RowwiseAdagrad"]


class Rows:
    """Rows of variables that have their rows in common: those of `indices`, unique int [rows], or by default all.

    The variables are resource variables or of the old kind.
    """

    def __init__(self, indices: Any = None) -> None:
        self._indices = indices

    def read(self, variable: Any) -> Any:
        """[rows] + the shape of a row."""
        return variable.read_value() if self._indices is None else tf1.gather(variable, self._indices)

    def write(self, *replaced: tuple[Any, Any]) -> Any:
        """An operation that replaces them, for pairs of a variable and its new rows.

        It begins when all new rows are there: what was read of a variable of the old kind may be the variable itself.
        """
        with tf1.control_dependencies([values for _, values in replaced]):
            return tf1.group(*[self._write(variable, values) for variable, values in replaced])

    def _write(self, variable: Any, values: Any) -> Any:
        if self._indices is None:
            return variable.assign(values, read_value=False)
        if variable.dtype._is_ref_dtype:
            return tf1.scatter_update(variable, self._indices, values).op
        return tf1.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=self._indices, updates=values)


class ByRows:
    """Makes of `update_rows` all that a `tf.compat.v1.train.Optimizer` needs.  Stands before it among the bases.

    Of a sparse gradient the rows are unique here: TensorFlow has added up those of one index before.
    """

    def update_rows(self, gradient: Any, variable: Any, rows: Rows) -> Any:
        """An operation that updates these rows of the variable and of its slots.

        gradient: [rows] + the shape of a row.
        """
        raise NotImplementedError

    def _apply_dense(self, gradient: Any, variable: Any) -> Any:
        return self.update_rows(gradient, variable, Rows())

    def _resource_apply_dense(self, gradient: Any, variable: Any) -> Any:
        return self.update_rows(gradient, variable, Rows())

    def _apply_sparse(self, gradient: Any, variable: Any) -> Any:
        return self.update_rows(gradient.values, variable, Rows(gradient.indices))

    def _resource_apply_sparse(self, gradient: Any, variable: Any, indices: Any) -> Any:
        return self.update_rows(gradient, variable, Rows(indices))


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


class RowwiseAdagrad(ByRows, tf1.train.Optimizer):  # type: ignore[misc]
    """Adagrad with one accumulator a row, so that its memory is that of a column.

    For each row that the gradient g names, all rows of a dense one:

        accumulator = accumulator + mean(g^2)        the mean of the squares over the entries of the row
        w = w - learning_rate g / (sqrt(accumulator) + epsilon)

    Other rows stay as they are.  A row is an entry along the first axis; of a scalar it is the scalar.

    Source: Adagrad of Duchi, Hazan and Singer, Adaptive subgradient methods for online learning and stochastic
    optimization, JMLR 2011; by rows as in DLRM (Naumov et al., Deep learning recommendation model for personalization
    and recommendation systems, 2019) and its `rowwise_adagrad` of FBGEMM, which has this formula.

    One slot, `accumulator`, [rows], float64 for a float64 variable and float32 for any other; a checkpoint has it as
    `w/RowwiseAdagrad`.
    """

    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-8,
        name: str = "RowwiseAdagrad",
    ) -> None:
        """Makes the optimizer.

        Args:
            learning_rate: A number or scalar tensor.
            initial_accumulator_value: At least 0. The default is that of `tf.compat.v1.train.AdagradOptimizer`; FBGEMM
                begins with 0.
            epsilon: At least 0.
            name: Of the slot.

        Raises:
            ValueError: one of the numbers is negative, or both are 0, where a gradient of 0 would give 0 / 0.
        """
        if initial_accumulator_value < 0 or epsilon < 0:
            raise ValueError(
                f"initial_accumulator_value ({initial_accumulator_value}) and epsilon ({epsilon}) must be at least 0"
            )
        if initial_accumulator_value == epsilon == 0:
            raise ValueError("initial_accumulator_value or epsilon must be above 0")
        super().__init__(False, name)
        self._learning_rate = learning_rate
        self._initial_accumulator_value = initial_accumulator_value
        self._epsilon = epsilon
        self._rate: Any = None

    def _create_slots(self, var_list: list[Any]) -> None:
        for variable in var_list:
            dtype = tf1.float64 if variable.dtype.base_dtype == tf1.float64 else tf1.float32
            value = tf1.constant_initializer(self._initial_accumulator_value)
            self._get_or_make_slot_with_initializer(
                variable, value, variable.shape[:1], dtype, "accumulator", self._name
            )

    def _prepare(self) -> None:
        self._rate = tf1.convert_to_tensor(self._learning_rate, name="learning_rate")

    def update_rows(self, gradient: Any, variable: Any, rows: Rows) -> Any:
        """As ByRows."""
        accumulator = self.get_slot(variable, "accumulator")
        gradient = tf1.cast(gradient, accumulator.dtype.base_dtype)
        axes = list(range(1, gradient.shape.rank))
        squares = rows.read(accumulator) + tf1.reduce_mean(tf1.square(gradient), axis=axes)
        scale = tf1.cast(self._rate, squares.dtype) / (tf1.sqrt(squares) + self._epsilon)
        step = gradient * (tf1.reshape(scale, [-1, *(1 for _ in axes)]) if axes else scale)
        moved = rows.read(variable) - tf1.cast(step, variable.dtype.base_dtype)
        return rows.write((accumulator, squares), (variable, moved))


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
