"""The tables of docs/ that are made of the code: states and events, and settings.

python -m tools.tables            writes them into their pages
python -m tools.tables --check    exits with 1 if a page has others
"""

from __future__ import annotations

import argparse
import sys
from itertools import groupby
from pathlib import Path

from psruntime.config import JobConfig
from psruntime.config.job import ORDERS, RULES, Case
from psruntime.config.process import ProcessConfig, SecurityConfig, WorkerConfig
from psruntime.config.settings import HEADINGS, default_text, flag_of, settings_of
from tools.states import LOGGED, READ, TABLE, Event, Fate, State

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- begin: made by python -m tools.tables -->", "<!-- end -->"
OWNERS = {  # who sets them -> their config
    "Of the job, given to ps 0 as flags or in the file of `--job`": (JobConfig,),
    "Of a worker": (WorkerConfig,),
    "Of every process": (ProcessConfig, SecurityConfig),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    stale = [page for page, tables in PAGES.items() if with_tables(page, tables()) != page.read_text(encoding="utf-8")]
    for page in stale:
        if check:
            sys.stderr.write(f"{page} has not the tables of the code: run python -m tools.tables\n")
        else:
            page.write_text(with_tables(page, PAGES[page]()), encoding="utf-8")
    return int(check and bool(stale))


def with_tables(page: Path, tables: str) -> str:
    """The text of a page with these between its marks."""
    before, _, after = page.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + "\n" + tables + END + after.partition(END)[2]


def states() -> str:
    """A table of where states and events can be read, and one for each event: its states that are not plainly kept."""
    notes = {cell.note: "" for row in TABLE.values() for cell in row.values() if cell.note}
    notes = {note: str(number) for number, note in enumerate(notes, 1)}
    columns = [chr(ord("A") + number) for number, _ in enumerate(Event)]
    lines = ["", *_row(["", "event", "the log says"]), "|---|---|---|"]
    for letter, event in zip(columns, Event, strict=True):
        event_text = f"`{LOGGED[event]}`" if LOGGED[event] else "the command's output"
        lines += _row([letter, event.value, event_text])
    lines += ["", "<!-- check: states -->", *_row(["state", *columns, "read it in"]), "|---" * (len(columns) + 2) + "|"]
    for state in State:
        cells = [TABLE[state][event] for event in Event]
        lines += _row([state.value, *(f"{_word(c.fate)} {notes.get(c.note, '')}".strip() for c in cells), READ[state]])
    lines += ["", *(f"{number}. {note}." for note, number in notes.items()), ""]
    return "\n".join(lines) + "\n"


def settings() -> str:
    """A table for each owner: flag, default and help of its settings, by heading, and what they need of others."""
    lines = [""]
    for owner, configs in OWNERS.items():
        found = [setting for config in configs for setting in settings_of(config)]
        lines += [f"**{owner}:**", "", "| flag, default | meaning |", "|---|---|"]
        for each in sorted(found, key=lambda setting: HEADINGS.index(setting.metadata["heading"])):
            default = default_text(each).removeprefix("default: ")
            others = [choice for choice in each.metadata["choices"] or () if choice != each.default]
            shown = [f"`{flag_of(each.name)}`", default, f"(or {', '.join(others)})" if others else ""]
            help_text = each.metadata["help"]
            lines += _row([" ".join(filter(None, shown)), "; ".join([help_text, *_needs(each.name, help_text)])])
        lines.append("")
    return "\n".join(lines)


def _needs(name: str, help_text: str) -> list[str]:
    """What a setting of the job needs of others, except for a mode that its help begins with."""
    rules = [rule for rule in RULES if rule.given.name == name]
    rules = [rule for rule in rules if not (rule.other.name == "mode" and help_text.startswith("mode "))]
    parts = []
    for (values, needs), group in groupby(rules, lambda rule: (rule.given.values, rule.needs)):
        others = ", ".join(_case(rule.other) for rule in group)
        parts.append(" ".join([*map(str, values), "needs" if needs else "not with", others]))
    orders = [order for order in ORDERS if order.less == name]
    return parts + [f"{'below' if order.below else 'at most'} `{flag_of(order.more)}`" for order in orders]


def _case(case: Case) -> str:
    values = " or ".join(map(str, case.values))
    return f"`{flag_of(case.name)} {values}`" if values else f"`{flag_of(case.name)}`"


PAGES = {DOCS / "states.md": states, DOCS / "settings.md": settings}


def _word(fate: Fate) -> str:
    return {Fate.KEPT: "kept", Fate.NEW: "**new**", Fate.LOST: "**lost**", Fate.NONE: "-"}[fate]


def _row(cells: list[str]) -> list[str]:
    return [f"| {' | '.join(cells)} |"]


if __name__ == "__main__":
    sys.exit(main())
