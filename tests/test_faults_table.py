"""The table of faults: what each error is at each place, and what TensorFlow makes of errors of the system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError, JobFailedError, PassingError, PsRuntimeError, UsageError, UserCodeError
from psruntime.faults import CODES, ERRNOS, FATES, Kind, Place, kind_of
from psruntime.usercode import blame
from tests.support import docs

TENSORFLOWS = [kind for kind in tf1.errors.__dict__.values() if isinstance(kind, type)]
OF_THE_MODEL = (TypeError, ValueError, KeyError, IndexError, AttributeError, ImportError, ZeroDivisionError)
FATE = {
    "2": UsageError, "75": PassingError, "1, saved": UserCodeError, "1": UserCodeError, "1, unsaved": CheckpointError,
    "1, the job is done": JobFailedError, "passed over": None,
}  # fmt: skip


@pytest.mark.parametrize("number", [n for numbers in ERRNOS.values() for n in numbers])
def test_an_error_of_the_system_is_of_one_kind_in_python_and_in_tensorflow(number: int) -> None:
    expected = next(kind for kind, numbers in ERRNOS.items() if number in numbers)
    text = os.strerror(number)
    assert kind_of(OSError(number, text)) is expected
    assert kind_of(tf1.errors.UnknownError(None, None, f"/data/part-1; {text}\n\t [[{{{{node N}}}}]]")) is expected
    raised = f"{type(OSError(number, text)).__name__}: [Errno {number}] {text}\nTraceback (most recent call last):"
    assert kind_of(tf1.errors.UnknownError(None, None, raised)) is expected


def test_every_code_of_tensorflow_is_in_the_table() -> None:
    known = {name for names in CODES.values() for name in names}
    ours = {kind for kind in TENSORFLOWS if issubclass(kind, tf1.errors.OpError) and kind is not tf1.errors.OpError}
    assert {kind.__name__ for kind in ours} == known
    for kind in ours:
        assert kind.__name__ in CODES[kind_of(kind(None, None, "it failed"))]


@pytest.mark.parametrize("error", [*(kind("x") for kind in OF_THE_MODEL), RecursionError(), AssertionError("x")])
def test_an_error_of_python_is_the_models(error: Exception) -> None:
    assert kind_of(error) is Kind.CODE
    named = tf1.errors.UnknownError(None, None, f"{type(error).__name__}: x\nTraceback (most recent call last):")
    assert kind_of(named) is Kind.CODE


@pytest.mark.parametrize("error", [MemoryError(), ConnectionRefusedError("away"), TimeoutError(), OSError("no shard")])
def test_memory_and_services_are_one_machines(error: Exception) -> None:
    assert kind_of(error) is Kind.MACHINE
    assert kind_of(tf1.errors.UnknownError(None, None, f"{type(error).__name__}: x")) is Kind.MACHINE


class _OfAClientError(OSError):
    """As a library for a service has it."""


class _ParseError(Exception):
    """As a user's own code has it."""


@pytest.mark.parametrize(
    "error",
    [
        _OfAClientError("it is away"), _OfAClientError(errno.ENOENT, "no such shard"), _ParseError("line 3: no number"),
        *(tf1.errors.__dict__[name](None, None, "it failed") for names in CODES.values() for name in names),
        *(OSError(number, os.strerror(number)) for number in (errno.EIO, errno.ENOENT)), MemoryError(), SystemExit(3),
    ],
)  # fmt: skip
def test_an_exception_is_the_same_in_a_python_function_of_an_operation(error: Exception) -> None:
    def fail() -> None:
        raise error

    with tf1.Graph().as_default(), tf1.Session() as session, pytest.raises(tf1.errors.OpError) as raised:
        session.run(tf1.numpy_function(fail, [], tf1.float32))
    assert kind_of(raised.value) is kind_of(error)


@pytest.mark.parametrize("path", ["nowhere", "folder"])
def test_what_tensorflow_really_raises_of_a_path(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    with tf1.Graph().as_default(), tf1.Session() as session, pytest.raises(tf1.errors.OpError) as raised:
        session.run(tf1.io.read_file(str(tmp_path / path)))
    assert kind_of(raised.value) is Kind.PATH


def test_what_tensorflow_really_raises_of_a_broken_disk() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session, pytest.raises(tf1.errors.OpError) as raised:
        records = tf1.data.TFRecordDataset("/proc/self/mem")
        session.run(tf1.data.make_one_shot_iterator(records).get_next())
    assert kind_of(raised.value) is Kind.MACHINE


def test_the_table_of_the_docs_is_the_modules() -> None:
    rows = {row[0]: row[1:] for row in docs.table("docs/troubleshooting.md", "faults of the user's code")}
    assert set(rows) == {place.value for place in Place}
    for place in Place:
        texts = zip((Kind.MACHINE, Kind.PATH, Kind.CODE), rows[place.value], strict=True)
        assert {kind: FATE[text] for kind, text in texts if text != "-"} == FATES[place]


@pytest.mark.parametrize("place", Place)
def test_code_of_the_user_fails_as_the_table_says(place: Place) -> None:
    errors = {Kind.MACHINE: OSError(errno.EIO, "bad disk"), Kind.PATH: FileNotFoundError("x"), Kind.CODE: SystemExit(3)}
    for kind, fate in FATES[place].items():
        error = errors[kind]
        if fate is None:
            continue
        with (
            pytest.raises(PsRuntimeError, match=f"it failed at .*: {type(error).__name__}: ") as raised,
            blame("it", place=place),
        ):
            raise error
        assert type(raised.value) is fate
