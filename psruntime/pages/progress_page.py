"""Throughput and loss over the last minutes."""

from __future__ import annotations

from psruntime.live.history import History
from psruntime.pages.figures import Curves
from psruntime.pages.page import Card, Page


def progress_page() -> Page:
    band = (lambda s: s.loss_least, lambda s: s.loss_most)
    loss = Curves("loss", [("mean", lambda s: s.loss)], band, from_zero=False, as_it_is=True)
    steps = Curves("global steps per second", [("steps/s", lambda s: s.steps_per_s)], number="0,0.[0]")
    examples = Curves("examples per second", [("examples/s", lambda s: s.examples_per_s)], number="0.[0]a")
    reached = Curves("global step", [("global step", lambda s: s.global_step)], number="0.[00]a", from_zero=False)
    curves = {"loss": loss, "steps": steps, "examples": examples, "reached": reached}

    def show(history: History) -> None:
        for each in curves.values():
            each.show(history)

    return Page(
        [
            Card("loss", "Loss", "Of the workers' last steps: mean, and from the least to the most.", loss.figure),
            Card("examples", "Throughput", "Examples per second, all workers together.", examples.figure),
            Card("steps", "Steps", "Updates per second; in mode sync rounds.", steps.figure),
            Card("reached", "Global step", "It falls where a ps was lost and the job went back.", reached.figure),
        ],
        show,
    )
