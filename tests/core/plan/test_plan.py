"""The plan: every variable is placed whole, once, evenly, and the same everywhere."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from psruntime.core.plan.buckets import DTYPE_BYTES, TRAINED_DTYPES, VariableSpec
from psruntime.core.plan.plan import ALIGNED_BYTES, Plan, first_difference, make_plan
from tests.support.selection import examples

CASES = settings(max_examples=examples(150), deadline=None, derandomize=True)

SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
NAMES = st.text("abc/_", min_size=1, max_size=6)
DTYPES = st.sampled_from(sorted(TRAINED_DTYPES))
MODELS = st.lists(
    st.builds(VariableSpec, NAMES, SHAPES, DTYPES, whole=st.booleans())
    | st.builds(VariableSpec, NAMES, SHAPES, DTYPES, group=st.integers(0, 2))
    | st.builds(VariableSpec, NAMES, SHAPES.filter(bool), DTYPES, st.just(True))
    | st.builds(VariableSpec, NAMES, SHAPES, st.sampled_from(sorted(DTYPE_BYTES)), trainable=st.just(False)),
    max_size=6,
    unique_by=lambda spec: spec.name,
)
NUM_PS = st.integers(1, 4)
SLICE_BYTES = st.integers(1, 300)


def spec(name: str, *shape: int, dtype: str = "float32") -> VariableSpec:
    return VariableSpec(name, shape, dtype)


def row_bytes(variable: VariableSpec) -> int:
    """Bytes of one entry along the first axis; of all of it for a scalar or an empty variable."""
    rows = variable.shape[0] if variable.shape else 0
    return variable.size_bytes // rows if rows else variable.size_bytes


def step_rows(variable: VariableSpec, slice_bytes: int) -> int:
    """The fewest rows that are a multiple of ALIGNED_BYTES; 1 if they are too many for a slice."""
    found = next(n for n in range(1, ALIGNED_BYTES + 1) if n * row_bytes(variable) % ALIGNED_BYTES == 0)
    return found if found * row_bytes(variable) <= slice_bytes else 1


def loads(plan: Plan) -> list[int]:
    return [plan.bytes_on(ps) for ps in range(plan.num_ps)]


@CASES
@given(MODELS, NUM_PS, SLICE_BYTES)
def test_the_buckets_of_a_variable_cover_it_once_in_whole_rows(
    model: list[VariableSpec], num_ps: int, slice_bytes: int
) -> None:
    plan = make_plan(model, num_ps, slice_bytes)
    assert [b for variable in plan.trained for b, _ in plan.pieces_of(variable.name)] == list(plan.buckets)
    assert_covered(plan)


def assert_covered(plan: Plan) -> None:
    """Pieces are whole rows of their variables and lie in their buckets without gap or overlap."""
    on_ps = [bucket for ps in range(plan.num_ps) for bucket in plan.on(ps)]
    assert sorted(on_ps, key=plan.buckets.index) == list(plan.buckets)
    for variable in plan.trained:
        end = 0
        for bucket, piece in plan.pieces_of(variable.name):
            assert piece.start == end
            assert bucket.dtype == variable.dtype
            assert piece.start * DTYPE_BYTES[bucket.dtype] % max(1, row_bytes(variable)) == 0
            end += piece.size
        assert end == variable.size
    for bucket in plan.buckets:
        end = 0
        for piece in bucket.pieces:
            assert piece.offset == end
            end += piece.size
        assert end == bucket.size


@CASES
@given(MODELS, NUM_PS, SLICE_BYTES)
def test_a_slice_is_within_its_limit_unless_it_is_one_row(
    model: list[VariableSpec], num_ps: int, slice_bytes: int
) -> None:
    plan = make_plan(model, num_ps, slice_bytes)
    for variable in plan.trained:
        buckets = [bucket for bucket, _ in plan.pieces_of(variable.name)]
        if variable.sparse or variable.whole:
            continue  # never sliced
        assert all(b.size_bytes <= max(slice_bytes, row_bytes(variable)) for b in buckets)
        if variable.size_bytes <= slice_bytes:
            assert [b.name for b in buckets] == [variable.name], "a small variable is one bucket with its name"
        else:
            step = step_rows(variable, slice_bytes)
            rows_each = max(step, slice_bytes // row_bytes(variable) // step * step)
            rows = variable.shape[0] if variable.shape else 1
            assert len(buckets) == -(-rows // rows_each), "no more slices than needed"
            assert all(b.pieces[0].start * DTYPE_BYTES[b.dtype] % (step * row_bytes(variable)) == 0 for b in buckets)
            sizes = [b.size_bytes for b in buckets]
            assert max(sizes) - min(sizes) < 2 * step * row_bytes(variable), "slices are as even as their steps allow"
            but_the_last = sizes[:-1] or sizes
            assert max(but_the_last) - min(but_the_last) <= step * row_bytes(variable)


@CASES
@given(MODELS, NUM_PS, SLICE_BYTES, st.randoms(use_true_random=False))
def test_the_place_of_a_bucket_does_not_depend_on_the_order_of_the_variables(
    model: list[VariableSpec], num_ps: int, slice_bytes: int, random: object
) -> None:
    plan = make_plan(model, num_ps, slice_bytes)
    assert make_plan(tuple(model), num_ps, slice_bytes) == plan
    shuffled = list(model)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = make_plan(shuffled, num_ps, slice_bytes)
    assert sorted(other.buckets, key=lambda b: b.name) == sorted(plan.buckets, key=lambda b: b.name)
    assert (other.fingerprint == plan.fingerprint) == (shuffled == model)


@CASES
@given(MODELS, NUM_PS, SLICE_BYTES)
def test_the_fullest_ps_holds_little_more_than_its_share(
    model: list[VariableSpec], num_ps: int, slice_bytes: int
) -> None:
    """Graham's bound of list scheduling: max <= total / n + (1 - 1 / n) x largest."""
    plan = make_plan(model, num_ps, slice_bytes)
    largest = max((b.size_bytes for b in (*plan.buckets, *plan.copies)), default=0)
    total = sum(variable.size_bytes for variable in model)
    assert sum(loads(plan)) == total
    assert num_ps * max(loads(plan)) <= total + (num_ps - 1) * largest


@CASES
@given(st.lists(st.integers(1, 40), max_size=30), NUM_PS, st.integers(1, 2000), st.integers(4, 200))
def test_variables_are_on_no_more_ps_than_have_enough_of_them(
    sizes: list[int], num_ps: int, min_ps_bytes: int, pack_bytes: int
) -> None:
    model = [VariableSpec(f"v{i}", (size,), "float32", group=1) for i, size in enumerate(sizes)]
    model += [
        VariableSpec("whole", (50,), "float32", whole=True),
        VariableSpec("mean", (9,), "float32", trainable=False),
    ]
    plan = make_plan(model, num_ps, 1 << 20, pack_bytes, min_ps_bytes)
    assert_covered(plan)
    total, largest = sum(spec.size_bytes for spec in model), max(spec.size_bytes for spec in model)
    used = [load for load in loads(plan) if load]
    allowed = min(num_ps, max(1, total // min_ps_bytes))
    assert len(used) <= allowed
    assert allowed * max(used) <= total + (allowed - 1) * largest, "evenly over as many as are allowed"
    if total >= num_ps * min_ps_bytes:
        assert plan == make_plan(model, num_ps, 1 << 20, pack_bytes)
    assert make_plan(model, num_ps, 1 << 20, 0, min_ps_bytes) == make_plan(model, num_ps, 1 << 20)


@CASES
@given(st.lists(st.integers(1, 12), max_size=7), st.integers(1, 3))
def test_the_fullest_ps_holds_at_most_four_thirds_of_the_best_spread(sizes: list[int], num_ps: int) -> None:
    """Graham 1969: longest first is within 4/3 - 1/(3n) of the optimum, which is found here by trying all."""
    plan = make_plan([spec(f"v{i}", size) for i, size in enumerate(sizes)], num_ps, 1 << 20)
    best = min(
        max(sum(size for size, at in zip(sizes, places, strict=True) if at == ps) for ps in range(num_ps))
        for places in product(range(num_ps), repeat=len(sizes))
    )
    assert 3 * num_ps * max(loads(plan)) <= (4 * num_ps - 1) * best * DTYPE_BYTES["float32"]


def test_the_largest_are_placed_first() -> None:
    plan = make_plan([spec("a", 1), spec("b", 1), spec("c", 2)], 2, 1 << 20)
    assert loads(plan) == [8, 8]


@CASES
@given(MODELS, MODELS, NUM_PS, SLICE_BYTES)
def test_two_plans_have_one_fingerprint_only_if_they_are_the_same(
    ours: list[VariableSpec], theirs: list[VariableSpec], num_ps: int, slice_bytes: int
) -> None:
    assume(ours != theirs)
    plan = make_plan(ours, num_ps, slice_bytes)
    assert plan.fingerprint != make_plan(theirs, num_ps, slice_bytes).fingerprint
    assert plan.fingerprint != make_plan(ours, num_ps + 1, slice_bytes).fingerprint
    assert plan.fingerprint != make_plan(ours, num_ps, slice_bytes + 1).fingerprint
    assert plan.fingerprint != make_plan(ours, num_ps, slice_bytes, pack_bytes=1).fingerprint
    assert 0 < plan.marker < 2**63


@CASES
@given(MODELS, NUM_PS, SLICE_BYTES)
def test_a_table_or_whole_variable_is_one_bucket_in_its_own_shape_and_every_other_bucket_is_flat(
    model: list[VariableSpec], num_ps: int, slice_bytes: int
) -> None:
    plan = make_plan(model, num_ps, slice_bytes)
    for variable in plan.trained:
        whole = variable.sparse or variable.whole
        if whole:
            assert [b.name for b, _ in plan.pieces_of(variable.name)] == [variable.name]
        for bucket, _ in plan.pieces_of(variable.name):
            assert bucket.is_table == variable.sparse
            assert bucket.master_shape == (variable.shape if whole else (bucket.size,))


@CASES
@given(MODELS, NUM_PS, SLICE_BYTES)
def test_a_variable_that_is_not_trainable_has_one_home_in_its_own_shape(
    model: list[VariableSpec], num_ps: int, slice_bytes: int
) -> None:
    plan = make_plan(model, num_ps, slice_bytes)
    fixed = [variable for variable in model if not variable.trainable]
    assert [(b.name, b.master_shape, b.dtype) for b in plan.copies] == [(v.name, v.shape, v.dtype) for v in fixed]
    assert all(0 <= home.ps < num_ps for home in plan.copies)
    assert not any(plan.pieces_of(variable.name) for variable in fixed)


def test_a_sparse_scalar_is_refused() -> None:
    with pytest.raises(ValueError, match="sparse variable s must have rows, it is a scalar"):
        make_plan([VariableSpec("s", (), "float32", sparse=True)], 1, 1)


CHANGED = [
    spec("v", 2, 3),
    spec("w", 3, 2),
    spec("v", 3, 2, dtype="float64"),
    spec("v", 6),
    VariableSpec("v", (3, 2), "float32", sparse=True),
    VariableSpec("v", (3, 2), "float32", trainable=False),
    VariableSpec("v", (3, 2), "float32", whole=True),
    VariableSpec("v", (3, 2), "float32", group=1),
]


@pytest.mark.parametrize("changed", CHANGED)
def test_name_shape_dtype_and_kind_all_count_in_the_fingerprint(changed: VariableSpec) -> None:
    plan, other = (make_plan([variable], 1, 100) for variable in (spec("v", 3, 2), changed))
    assert plan.fingerprint != other.fingerprint
    assert plan.marker != other.marker


@CASES
@given(MODELS, MODELS)
def test_there_is_a_first_difference_exactly_between_different_models(
    ours: list[VariableSpec], theirs: list[VariableSpec]
) -> None:
    assert first_difference(ours, ours) is None
    assert (first_difference(ours, theirs) is None) == (ours == theirs)


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        ([spec("a", 2), spec("b", 7)], "b float32[7] there, b float32[3, 4] here"),
        ([spec("a", 2), spec("b", 3, 4, dtype="float64")], "b float64[3, 4] there, b float32[3, 4] here"),
        ([VariableSpec("a", (2,), "float32", True)], "a float32[2] sparse there, a float32[2] here"),
        ([VariableSpec("a", (2,), "float32", group=3)], "a float32[2] of group 3 there, a float32[2] of group 0 here"),
        ([spec("x"), spec("b", 7)], "x float32[] there, a float32[2] here"),
        ([spec("a", 2)], "b float32[3, 4] is here only"),
        ([spec("a", 2), spec("b", 3, 4), spec("c", 1)], "c float32[1] is there only"),
    ],
)
def test_the_first_difference_names_the_variable_and_both_shapes(theirs: list[VariableSpec], text: str) -> None:
    assert first_difference([spec("a", 2), spec("b", 3, 4)], theirs) == text


@pytest.mark.parametrize(
    "model",
    [
        [spec("v", 2), spec("v", 2)],
        [spec("v", 4), spec("v/slice_1", 1)],  # the second slice of v has the name of another variable
        [spec("v/slice_0", 1), spec("v", 4)],
    ],
)
def test_two_buckets_of_one_name_are_refused(model: list[VariableSpec]) -> None:
    with pytest.raises(ValueError, match=r"variable and slice names must differ, v\S* is there 2 times"):
        make_plan(model, 2, 8)


def test_a_name_like_that_of_a_slice_is_fine_while_there_is_no_such_slice() -> None:
    plan = make_plan([spec("v", 2), spec("v/slice_0", 2)], 2, 8)
    assert [(b.name, b.ps) for b in plan.buckets] == [("v", 0), ("v/slice_0", 1)]


@pytest.mark.parametrize(("num_ps", "slice_bytes"), [(0, 1), (1, 0)])
def test_there_must_be_a_ps_and_a_slice_size(num_ps: int, slice_bytes: int) -> None:
    with pytest.raises(ValueError, match=rf"num_ps \({num_ps}\) and slice_bytes \({slice_bytes}\) must be at least 1"):
        make_plan([spec("v", 1)], num_ps, slice_bytes)


def test_scalars_and_empty_variables_are_one_bucket_each() -> None:
    plan = make_plan([spec("scalar"), spec("empty", 0, 5), spec("no_columns", 5, 0)], 1, 1)
    assert [(b.name, b.pieces[0].start, b.size) for b in plan.buckets] == [
        ("scalar", 0, 1),
        ("empty", 0, 0),
        ("no_columns", 0, 0),
    ]


def test_a_large_variable_is_cut_into_whole_rows_on_all_ps() -> None:
    plan = make_plan([spec("table", 5, 3)], 2, 30)  # rows of 12 bytes, two to a slice
    assert [(b.name, b.ps, b.pieces[0].start, b.size) for b in plan.buckets] == [
        ("table/slice_0", 0, 0, 3),
        ("table/slice_1", 0, 3, 6),
        ("table/slice_2", 1, 9, 6),
    ]


def test_a_slice_begins_where_tensorflow_need_not_copy() -> None:
    plan = make_plan([spec("kernel", 25_000, 1000)], 2, 16 << 20)  # two rows of 4,000 bytes are a multiple of 64
    starts = [b.pieces[0].start // 1000 for b in plan.buckets]
    assert starts == [0, 4166, 8332, 12500, 16666, 20832]
    assert all(4000 * start % ALIGNED_BYTES == 0 for start in starts)


def test_a_table_is_never_cut() -> None:
    plan = make_plan([VariableSpec("table", (5, 3), "float32", sparse=True), spec("v", 4)], 2, 30)
    assert [(b.name, b.ps, b.size) for b in plan.buckets] == [("table", 0, 15), ("v", 1, 4)]


def test_a_row_is_never_cut() -> None:
    plan = make_plan([spec("wide", 2, 1000)], 3, 16)
    assert [(b.name, b.pieces[0].start, b.size) for b in plan.buckets] == [
        ("wide/slice_0", 0, 1000),
        ("wide/slice_1", 1000, 1000),
    ]


def test_a_model_without_variables_has_an_empty_plan() -> None:
    plan = make_plan([], 3, 16)
    assert plan.buckets == ()
    assert loads(plan) == [0, 0, 0]


# --- packing ---


@CASES
@given(MODELS, NUM_PS, SLICE_BYTES, st.integers(1, 300))
def test_packing_joins_what_is_alike_and_leaves_everything_on_its_ps(
    model: list[VariableSpec], num_ps: int, slice_bytes: int, pack_bytes: int
) -> None:
    alone, plan = (make_plan(model, num_ps, slice_bytes, size) for size in (0, pack_bytes))
    assert_covered(plan)
    assert loads(plan) == loads(alone)
    assert plan.copies == alone.copies
    ps_of = {(piece.variable, piece.start): bucket.ps for bucket in alone.buckets for piece in bucket.pieces}
    specs = {variable.name: variable for variable in model}
    for bucket in plan.buckets:
        assert {ps_of[piece.variable, piece.start] for piece in bucket.pieces} == {bucket.ps}
        kinds = {(specs[p.variable].dtype, specs[p.variable].group) for p in bucket.pieces}
        assert kinds == {(bucket.dtype, bucket.group)}
        if bucket.is_packed:
            assert bucket.group > 0 and bucket.size_bytes <= pack_bytes and bucket.own_shape is None


@CASES
@given(st.lists(st.integers(1, 40), max_size=30), NUM_PS, st.integers(4, 200))
def test_there_are_few_buckets(sizes: list[int], num_ps: int, pack_bytes: int) -> None:
    """Of two neighbours on a ps that one bucket could hold, only the last may be half empty: the next did not fit."""
    model = [VariableSpec(f"v{i}", (size,), "float32", group=1) for i, size in enumerate(sizes)]
    plan = make_plan(model, num_ps, 1 << 20, pack_bytes)
    for ps in range(num_ps):
        held = [bucket.size_bytes for bucket in plan.on(ps) if bucket.size_bytes <= pack_bytes]
        assert all(one + other > pack_bytes for one, other in pairwise(held))


def test_a_packed_bucket_has_the_name_of_its_first_variable() -> None:
    model = [VariableSpec(name, (size,), "float32", group=1) for name, size in [("a", 1), ("b", 2), ("c", 100)]]
    plan = make_plan(model, 1, 1 << 20, 12)
    assert [(b.name, [p.variable for p in b.pieces]) for b in plan.buckets] == [("a.and_1", ["a", "b"]), ("c", ["c"])]
    assert [(b.name, p.offset, p.size) for b, p in plan.pieces_of("b")] == [("a.and_1", 1, 2)]


def test_in_a_bucket_those_come_first_that_keep_the_next_aligned() -> None:
    sizes = {"bias": 5, "kernel": 16, "scale": 3, "head": 32}
    specs = [VariableSpec(name, (size,), "float32", group=1) for name, size in sizes.items()]
    plan = make_plan(specs, 1, 1 << 20, 1 << 20)
    (bucket,) = plan.buckets
    assert [(p.variable, p.offset) for p in bucket.pieces] == [("kernel", 0), ("head", 16), ("bias", 48), ("scale", 53)]


@CASES
@given(MODELS, NUM_PS, SLICE_BYTES)
def test_a_variable_with_an_aggregation_is_a_bucket_of_its_own(
    model: list[VariableSpec], num_ps: int, slice_bytes: int
) -> None:
    counts = VariableSpec("counts", (40, 3), "int64", trainable=False, aggregation="SUM")
    plan = make_plan([*model, counts], num_ps, slice_bytes, pack_bytes=1 << 20)
    ((bucket, piece),) = plan.pieces_of("counts")
    assert (bucket.aggregation, bucket.master_shape, piece.size, len(bucket.pieces)) == ("SUM", (40, 3), 120, 1)
    assert plan.aggregated == [counts] and "counts" not in {home.name for home in plan.copies}
    other = make_plan([*model, replace(counts, aggregation="MEAN")], num_ps, slice_bytes, pack_bytes=1 << 20)
    assert plan.fingerprint != other.fingerprint
    assert first_difference(plan.specs, other.specs) == (
        "counts int64[40, 3] not trainable aggregation MEAN there, "
        "counts int64[40, 3] not trainable aggregation SUM here"
    )
