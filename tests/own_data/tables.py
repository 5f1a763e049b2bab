"""Tables of unlike forms, each with something to learn, and what a guess without any column reaches."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

ROWS = 2500


def as_csv(rows: Iterator[list[Any]], header: list[str] | None = None, delimiter: str = ",") -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator="\n").writerows([*([header] if header else []), *rows])
    return out.getvalue()


def loans(random: Random) -> Iterator[list[Any]]:
    """A rare yes, by a number and a category; a row number, a date, a constant."""
    for number in range(ROWS):
        income, purpose = random.lognormvariate(10, 0.6), random.choice(["car", "home", "study", "travel"])
        risk = -6.0 + 3.5 * (income < 15000) + 2.5 * (purpose == "travel")
        failed = random.random() < 1 / (1 + math.exp(-risk))
        day = f"2024-{random.randint(1, 12):02}-{random.randint(1, 28):02}"
        yield [number + 1, day, f"{income:.2f}", purpose, "EUR", "yes" if failed else "no"]


def plants(random: Random) -> Iterator[list[Any]]:
    """Three kinds, by categories of which one has many values."""
    gardens = {f"garden {n}": random.choice(["fern", "rose", "moss"]) for n in range(200)}
    for _ in range(ROWS):
        garden, light = random.choice(list(gardens)), random.choice(["sun", "shade", "half", ""])
        kind = "moss" if light == "shade" else gardens[garden]
        yield [garden, light, kind if random.random() < 0.9 else random.choice(["fern", "rose", "moss"])]


def flats(random: Random) -> Iterator[list[Any]]:
    """A rent, by numbers of which some are empty; where one is, the rent is lower."""
    for _ in range(ROWS):
        area, floor, old = random.gauss(70, 25), random.randint(0, 12), random.random() < 0.2
        rent = max(200.0, 12 * area + 10 * floor - 300 * old + random.gauss(0, 60))
        is_known = random.random() < 0.9
        yield [f"{area:.1f}" if is_known else "", "" if old else 1950 + random.randint(0, 70), floor, round(rent)]


def sensors(random: Random) -> Iterator[list[Any]]:
    """No header, semicolons and decimal commas; whether two readings are on one side."""
    for _ in range(ROWS):
        one, two = random.uniform(-1, 1), random.uniform(-1, 1)
        yield [f"{one:.3f}".replace(".", ","), f"{two:.3f}".replace(".", ","), random.choice("abc"), int(one * two > 0)]


def reviews(random: Random) -> Iterator[list[Any]]:
    """Text with commas, quotes and new lines, of which a category of long texts decides; several files."""
    notes = ["good, as always", 'the "best"\never', "late,\nand broken", "never again, ever"]
    for number in range(ROWS):
        note = random.randrange(4)
        stars = min(5, max(1, (4.5, 5, 2, 1)[note] + random.gauss(0, 0.7)))
        yield [f"r{number:05}x{random.random():.6f}", notes[note], f"{random.uniform(1, 99):.2f} €", f"{stars:.3f}"]


TABLES: dict[str, tuple[Callable[[Random], Iterator[list[Any]]], list[str] | None, str, str]] = {
    "loans": (loans, ["Nr", "Day", "Income (EUR)", "Purpose", "Currency", "Failed"], ",", ""),
    "plants": (plants, ["garden", "light", "kind"], "\t", ""),
    "flats": (flats, ["area", "built", "floor", "rent"], ",", "rent"),
    "sensors": (sensors, None, ";", ""),
    "reviews": (reviews, ["review_id", "note", "price", "stars"], ",", "stars"),
}


def write(name: str, folder: Path) -> tuple[list[Path], str]:
    """The files of a table, and its label where it has to be named."""
    rows, header, delimiter, label = TABLES[name]
    made = list(rows(Random(name)))
    parts = [made[:1500], made[1500:]] if name == "reviews" else [made]
    files = [folder / f"{name}_{number}.csv" for number in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        file.write_text(as_csv(iter(part), header, delimiter))
    return files, label
