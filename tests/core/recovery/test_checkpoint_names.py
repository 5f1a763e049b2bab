"""Which tensor of a checkpoint each of ours is restored from."""

from __future__ import annotations

from psruntime.core.recovery.checkpoint_names import Entry, EntryKind, Found, find_sources

ROW: Found = ((4, 2), "float32")
SCALAR: Found = ((), "float32")


def variable(name: str) -> Entry:
    return Entry(name, (4, 2), "float32")


def slot(name: str) -> Entry:
    return Entry(name, (4, 2), "float32", EntryKind.SLOT)


def power(name: str) -> Entry:
    return Entry(f"{name}/beta1_power", (), "float32", EntryKind.SHARED, "beta1_power")


ADAM = [variable("w"), slot("w/Adam"), power("w"), variable("deep/w"), slot("deep/w/Adam"), power("deep/w")]
MODEL = {"w": ROW, "deep/w": ROW}
SLOTS = {"w/Adam": ROW, "deep/w/Adam": ROW}


def test_our_own_names_come_first() -> None:
    there = {**MODEL, **SLOTS, "w/beta1_power": SCALAR, "deep/w/beta1_power": SCALAR, "beta1_power": SCALAR}
    sources, misfits = find_sources(ADAM, there)
    assert sources == {entry.name: entry.name for entry in ADAM}
    assert misfits == []


def test_what_stock_has_once_serves_every_variable() -> None:
    sources, misfits = find_sources(ADAM, {**MODEL, **SLOTS, "beta1_power": SCALAR, "beta1_power_1": SCALAR})
    assert (sources["w/beta1_power"], sources["deep/w/beta1_power"]) == ("beta1_power", "beta1_power")
    assert misfits == []


def test_a_name_scope_is_found_if_it_is_the_only_one() -> None:
    sources, misfits = find_sources(ADAM, {**MODEL, **SLOTS, "train/beta1_power": SCALAR})
    assert sources["w/beta1_power"] == "train/beta1_power"
    assert misfits == []
    _, misfits = find_sources(ADAM, {**MODEL, **SLOTS, "a/beta1_power": SCALAR, "b/beta1_power": SCALAR})
    assert misfits[0] == "w/beta1_power is missing there, float32[] in the model"


def test_the_power_of_another_variable_is_not_taken() -> None:
    there = {**MODEL, **SLOTS, "deep/w/beta1_power": SCALAR}
    assert find_sources(ADAM, there)[1] == ["w/beta1_power is missing there, float32[] in the model"]


def test_a_scope_of_slots_holds_for_all_or_for_none() -> None:
    scoped = {f"train/{name}": found for name, found in SLOTS.items()}
    sources, misfits = find_sources(ADAM, {**MODEL, **scoped, "train/beta1_power": SCALAR})
    assert {name: sources[name] for name in SLOTS} == {name: f"train/{name}" for name in SLOTS}
    assert misfits == []
    del scoped["train/w/Adam"]
    _, misfits = find_sources(ADAM, {**MODEL, **scoped, "beta1_power": SCALAR})
    assert misfits == [f"{name} is missing there, float32[4, 2] in the model" for name in SLOTS]


def test_a_slot_that_is_another_variables_is_not_taken() -> None:
    there = {**MODEL, "deep/w/Adam": ROW, "beta1_power": SCALAR}
    assert find_sources(ADAM, there)[1] == ["w/Adam is missing there, float32[4, 2] in the model"]


def test_shape_and_dtype_have_to_fit() -> None:
    there = {"w": ((4, 3), "float32"), "deep/w": ((4, 2), "float64")}
    assert find_sources([variable("w"), variable("deep/w")], there) == (
        {},
        [
            "w float32[4, 3] there, float32[4, 2] in the model",
            "deep/w float64[4, 2] there, float32[4, 2] in the model",
        ],
    )
