"""The events of the job, with the coordinator's reasons."""

from __future__ import annotations

from psruntime.live.history import History
from psruntime.pages.page import Card, Page, time_text
from psruntime.pages.tables import Lines


def events_page() -> Page:
    events = Lines("at", "what", "who", "why")
    gone = Lines("since", "who", "how", "why", empty="none")

    def show(history: History) -> None:
        events.show([(time_text(e.at_s), e.kind, e.subject, e.reason) for e in reversed(history.events)])
        departures = list(reversed(history.status.departures)) if history.status else []
        gone.show([
            (time_text(history.at_s - d.ago_s), f"{d.role} {d.index}",
             "lost" if d.kind is None else f"left ({d.kind})", d.reason)
            for d in departures
        ])  # fmt: skip

    return Page(
        [
            Card("events", "Events", "The latest first, since this dashboard looks; ps 0's log has all of them.",
                 events.model, wide=True),
            Card("gone", "Who is gone", "The coordinator's list, also from before.", gone.model, wide=True),
        ],
        show,
    )  # fmt: skip
