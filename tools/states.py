"""The tables of docs/states.md, made of psruntime/states.py.

python -m tools.states            writes them into the page
python -m tools.states --check    exits with 1 if the page has others
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from psruntime.states import READ, SAID, TABLE, Event, Fate, State

PAGE = Path(__file__).resolve().parents[1] / "docs" / "states.md"
BEGIN, END = "<!-- begin: made by python -m tools.states -->", "<!-- end -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    made = before + BEGIN + "\n" + tables() + END + rest.partition(END)[2]
    if parser.parse_args().check:
        if made != text:
            sys.stderr.write(f"{PAGE} has not the tables of psruntime/states.py: run python -m tools.states\n")
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


def tables() -> str:
    """A table of where states and events can be read, and one for each event: its states that are not plainly kept."""
    notes = {cell.note: "" for row in TABLE.values() for cell in row.values() if cell.note}
    notes = {note: str(number) for number, note in enumerate(notes, 1)}
    columns = [chr(ord("A") + number) for number, _ in enumerate(Event)]
    lines = ["", *_row(["", "event", "the log says"]), "|---|---|---|"]
    for letter, event in zip(columns, Event, strict=True):
        said = f"`{SAID[event]}`" if SAID[event] else "the command's output"
        lines += _row([letter, event.value, said])
    lines += ["", "<!-- check: states -->", *_row(["state", *columns, "read it in"]), "|---" * (len(columns) + 2) + "|"]
    for state in State:
        cells = [TABLE[state][event] for event in Event]
        lines += _row([state.value, *(f"{_word(c.fate)} {notes.get(c.note, '')}".strip() for c in cells), READ[state]])
    lines += ["", *(f"{number}. {note}." for note, number in notes.items()), ""]
    return "\n".join(lines) + "\n"


def _word(fate: Fate) -> str:
    return {Fate.KEPT: "kept", Fate.NEW: "**new**", Fate.LOST: "**lost**", Fate.NONE: "-"}[fate]


def _row(cells: list[str]) -> list[str]:
    return [f"| {' | '.join(cells)} |"]


if __name__ == "__main__":
    sys.exit(main())
