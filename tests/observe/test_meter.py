"""The figures of a worker."""

from __future__ import annotations

from psruntime.observe.meter import RATE_WINDOW_S, StepMeter


def test_nothing_measured_yet() -> None:
    stats = StepMeter().stats(0.0, "starting")
    assert (stats.examples_per_s, stats.loss, stats.waiting) == (0.0, None, "starting")


def test_rate_loss_and_percentiles() -> None:
    meter = StepMeter()
    for i in range(100):
        meter.step(loss=1.0 / (i + 1), examples=32, staleness=i, dropped=i % 2, now_s=i * 0.01)
    stats = meter.stats(1.0)
    assert stats.loss == 0.01
    assert abs(stats.examples_per_s - 3200) < 1
    assert (stats.staleness_p50, stats.staleness_p99) == (50, 99)
    assert meter.dropped == 50


def test_a_worker_that_no_longer_steps_has_no_rate() -> None:
    meter = StepMeter()
    for i in range(10):
        meter.step(1.0, 32, 0, 0, now_s=float(i))
    assert meter.stats(9.0).examples_per_s > 0
    assert meter.stats(9.0 + 2 * RATE_WINDOW_S).examples_per_s == 0


def test_updates_are_counted_by_their_staleness() -> None:
    meter = StepMeter()
    for staleness in (0, 0, 1, 2, 3, 4, 5, 1024, 1025, 9999):
        meter.step(1.0, 32, staleness, 0, now_s=0.0)
    assert meter.stats(0.0).staleness_counts == (2, 1, 1, 2, 1, 0, 0, 0, 0, 0, 0, 1, 2)
