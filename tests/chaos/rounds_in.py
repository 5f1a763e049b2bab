"""How many rounds are in a checkpoint of the model of marker.py: of one round's parameters, or not."""

from __future__ import annotations

from pathlib import Path

RATE = 2.0**-20
NAMES = ("a", "b", "c", "d")
SLOT = "Momentum"
TOLERANCE = 1e-4  # relative; a round more or less makes more than that for as long as there are fewer than 9,000


def write_model(folder: Path, gates: Path, name: str = "marker_model") -> str:
    """A module with the model, next to the logs of a test; returns its name."""
    (folder / f"{name}.py").write_text(
        "from tests.chaos.marker import input_fn, make\n"
        f"model_fn = make({str(gates)!r})\n"
        "__all__ = ['input_fn', 'model_fn']\n"
    )
    return name


def rounds_in(extremes: dict[str, list[float]]) -> int:
    """From the least and the largest entry of every tensor.

    Raises:
        AssertionError: a tensor lacks, or the entries are not all of the same round.
    """
    expected = {*NAMES, *(f"{name}/{SLOT}" for name in NAMES), "global_step"}
    assert set(extremes) == expected, f"tensors {sorted(extremes)}"
    rounds = int(extremes["global_step"][0])
    for name in NAMES:
        _all_near(f"{name}/{SLOT}", extremes[f"{name}/{SLOT}"], rounds, rounds)
        _all_near(name, extremes[name], -RATE * rounds * (rounds + 1) / 2, rounds)
    return rounds


def _all_near(name: str, extremes: list[float], value: float, rounds: int) -> None:
    good = all(abs(each - value) <= TOLERANCE * abs(value) for each in extremes)
    assert good, f"{name} is from {extremes[0]} to {extremes[1]}, {value} after {rounds} rounds"
