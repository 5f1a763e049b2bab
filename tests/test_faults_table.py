"""The table of faults: what each error is at each place, and what TensorFlow makes of errors of the system."""

from __future__ import annotations

import bz2
import csv
import errno
import gzip
import http.client
import io
import json
import lzma
import os
import pickle
import struct
import urllib.error
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError, JobFailedError, PassingError, PsRuntimeError, UsageError, UserCodeError
from psruntime.faults import CODES, ERRNOS, FATES, FaultKind, Place, blame, is_damage, kind_of
from tests.support import docs

TENSORFLOWS = [kind for kind in tf1.errors.__dict__.values() if isinstance(kind, type)]
OF_THE_MODEL = (TypeError, ValueError, KeyError, IndexError, AttributeError, ImportError, ZeroDivisionError)
FATE = {
    "2": UsageError, "75": PassingError, "1, saved": UserCodeError, "1": UserCodeError, "1, unsaved": CheckpointError,
    "1, done": JobFailedError, "logged": None,
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
    assert kind_of(error) is FaultKind.CODE
    named = tf1.errors.UnknownError(None, None, f"{type(error).__name__}: x\nTraceback (most recent call last):")
    assert kind_of(named) is FaultKind.CODE


class _JSONDecodeError(OSError):
    """Called as one of Python's that is no OSError: `requests` has such a one."""


_JSONDecodeError.__name__ = _JSONDecodeError.__qualname__ = "JSONDecodeError"


def of_h5(folder: Path) -> None:
    import h5py

    (folder / "x.h5").write_bytes(b"no HDF5 at all")
    h5py.File(folder / "x.h5")


# What real libraries raise of damaged data, or of files that are used as they may not be; none has a number.
DAMAGED: dict[str, Callable[[Path], object]] = {
    "gzip": lambda _: gzip.decompress(b"no gzip at all"),
    "gzip, cut off": lambda _: gzip.decompress(gzip.compress(b"x" * 1000)[:20]),
    "bz2": lambda _: bz2.decompress(b"no bz2 at all"),
    "lzma": lambda _: lzma.decompress(b"no lzma at all"),
    "zlib": lambda _: zlib.decompress(b"no zlib at all"),
    "zip": lambda _: zipfile.ZipFile(io.BytesIO(b"no zip at all")),
    "pickle": lambda _: pickle.loads(b"no pickle at all"),
    "pickle, empty": lambda _: pickle.loads(b""),
    "json": lambda _: json.loads("{"),
    "struct": lambda _: struct.unpack("q", b"1234"),
    "utf-8": lambda _: b"\xff".decode(),
    "HDF5": of_h5,
}
MISUSED: dict[str, Callable[[Path], object]] = {
    "a file that is not writable": lambda folder: (folder / "x").open("w").read(),
    "csv": lambda _: next(csv.reader(["a\rb\nc"])),
}


@pytest.mark.parametrize("name", [*DAMAGED, *MISUSED])
def test_damaged_data_is_the_models_also_in_a_python_function_of_an_operation(name: str, tmp_path: Path) -> None:
    def fail() -> None:
        (DAMAGED | MISUSED)[name](tmp_path)

    try:
        fail()
    except Exception as error:  # noqa: BLE001 - whichever the library raises
        assert kind_of(error) is FaultKind.CODE
        assert is_damage(error) is (name in DAMAGED)
    else:
        pytest.fail("nothing was raised")
    with tf1.Graph().as_default(), tf1.Session() as session, pytest.raises(tf1.errors.OpError) as within:
        session.run(tf1.numpy_function(fail, [], tf1.float32))
    assert kind_of(within.value) is FaultKind.CODE


def read_gzip(path: Path) -> None:
    with gzip.open(path) as file:
        file.read()


def read_json(path: Path) -> None:
    with path.open() as file:
        json.load(file)


def read_zip(path: Path) -> None:
    zipfile.ZipFile(path)


def read_pickle(path: Path) -> None:
    with path.open("rb") as file:
        pickle.load(file)


@pytest.mark.parametrize("read", [read_gzip, read_json, read_zip, read_pickle])
def test_a_message_names_the_damaged_file(read: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "part-3").write_bytes(b"no such thing")
    said = rf"^input_fn failed at .*; it is of {tmp_path}/part-3$"
    with pytest.raises(UserCodeError, match=said), blame("input_fn", place=Place.INPUT):
        read(tmp_path / "part-3")


def test_a_damaged_file_of_records_is_the_models(tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(b"no records at all, and long enough for a header")
    with tf1.Graph().as_default(), tf1.Session() as session, pytest.raises(tf1.errors.DataLossError) as raised:
        records = tf1.data.TFRecordDataset(str(tmp_path / "x.tfrecord"))
        session.run(tf1.data.make_one_shot_iterator(records).get_next())
    assert kind_of(raised.value) is FaultKind.CODE


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(), ConnectionRefusedError("away"), TimeoutError(), OSError("no shard"),
        http.client.IncompleteRead(b"half"), urllib.error.URLError("away"),
    ],
)  # fmt: skip
def test_memory_and_services_are_one_machines(error: Exception) -> None:
    assert kind_of(error) is FaultKind.MACHINE
    assert kind_of(tf1.errors.UnknownError(None, None, f"{type(error).__name__}: x")) is FaultKind.MACHINE


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
    assert kind_of(raised.value) is FaultKind.PATH


def test_what_tensorflow_really_raises_of_a_broken_disk() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session, pytest.raises(tf1.errors.OpError) as raised:
        records = tf1.data.TFRecordDataset("/proc/self/mem")
        session.run(tf1.data.make_one_shot_iterator(records).get_next())
    assert kind_of(raised.value) is FaultKind.MACHINE


def test_the_table_of_the_docs_is_the_modules() -> None:
    rows = {row[0]: row[1:] for row in docs.table("docs/troubleshooting.md", "faults of the user's code")}
    assert set(rows) == {place.value for place in Place}
    for place in Place:
        texts = zip((FaultKind.MACHINE, FaultKind.PATH, FaultKind.CODE), rows[place.value], strict=True)
        assert {kind: FATE[text] for kind, text in texts if text != "-"} == FATES[place]


@pytest.mark.parametrize("place", Place)
def test_code_of_the_user_fails_as_the_table_says(place: Place) -> None:
    errors = {
        FaultKind.MACHINE: OSError(errno.EIO, "bad disk"),
        FaultKind.PATH: FileNotFoundError("x"),
        FaultKind.CODE: SystemExit(3),
    }
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
