"""Every line of text files is read once, by one worker or by the evaluation, and a line of another format is named."""

from __future__ import annotations

import gzip
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from psruntime.errors import UsageError, UserCodeError
from psruntime.examples.text_lines import BLOCK, LineFormat
from psruntime.model import Context
from tests.examples.drawing import context, drawn

MADE = [f"made {number}" for number in range(20)]
FORMAT = LineFormat(("a.txt", "b*.gz"), "[a-z]+ [0-9]+", "a word and a number", lambda: MADE)
LINES = {"a.txt": 3 * BLOCK + 7, "b0.gz": 2 * BLOCK, "b1.gz": 1}
WORKERS = 3
HELD_OUT = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (name, count) in enumerate(LINES.items()):
        text = "".join(f"{line}\n" for line in lines_of(number, count)).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    return tmp_path


def lines_of(number: int, count: int) -> list[str]:
    return [f"{'abc'[number]} {line}" for line in range(1, count + 1)]


def read(of: Context) -> list[str]:
    """In the order in which they come."""
    batches = drawn(lambda given: FORMAT.batches(given, lambda lines: lines, HELD_OUT), of)
    return [line.decode() for (batch,) in batches for line in batch]


def test_all_workers_and_the_evaluation_read_each_line_once(folder: Path) -> None:
    shares = [read(context("train", worker, WORKERS, folder, seed=worker)) for worker in range(WORKERS)]
    held_out = read(context("eval", 0, WORKERS, folder))
    every = [lines_of(number, count) for number, count in enumerate(LINES.values())]
    assert held_out == [line for lines in every for line in lines[HELD_OUT - 1 :: HELD_OUT]]
    assert sorted(chain(held_out, *shares)) == sorted(chain(*every))
    assert min(map(len, shares)) > 0


@pytest.mark.long
def test_a_worker_that_joins_later_takes_a_share_that_there_is(folder: Path) -> None:
    first, later = context("train", 1, WORKERS, folder), context("train", 1 + WORKERS, WORKERS, folder, seed=5)
    assert sorted(read(first)) == sorted(read(later)) and read(first) != read(later)


def test_the_order_is_that_of_the_seed(folder: Path) -> None:
    again = context("train", data_dir=folder)
    assert read(again) == read(again) != read(replace(again, seed=1))


def test_a_file_itself_and_generated_lines(folder: Path) -> None:
    assert len(read(context("eval", data_dir=folder / "b0.gz"))) == LINES["b0.gz"] // HELD_OUT
    assert read(context("eval")) == MADE[HELD_OUT - 1 :: HELD_OUT]


@pytest.mark.parametrize("line", ["ab 12 ", "", "ab", "ab 1\tb 2"])
def test_a_line_of_another_format_is_named(line: str, tmp_path: Path) -> None:
    lines = [*lines_of(0, 2 * BLOCK), line, *lines_of(0, 3)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    with pytest.raises(UserCodeError) as failed:
        read(context("train", data_dir=tmp_path))
    assert f"[{tmp_path}/a.txt line {2 * BLOCK + 1} is not a word and a number]" in str(failed.value)
    assert "\n" not in str(failed.value)


def test_without_a_file_it_says_which_there_should_be(tmp_path: Path) -> None:
    for empty in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError) as refused:
            read(context("train", data_dir=empty))
        said = "has no file a.txt or b*.gz; --data-dir must be such a file, or a folder with them"
        assert str(refused.value) == f"{empty} {said}"
