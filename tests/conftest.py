"""What `make test` and `.ci/run` leave out, and the lines that say so.

Tests that are long by nature have the marker `long`: `make test` leaves them out, `make test SHARE=K/N` plays the share
K of N of them (by a checksum of a test's name, so that N shares are all tests), `make test-all` plays all.  How many
examples Hypothesis plays is a profile: "all" in the share K of N of the files, else "quick".

A run ends with the names of the tests that take more than SLOW_S and are not marked long.
"""

from __future__ import annotations

import gc
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

PROFILES = {"quick": 20, "all": 100}
for name, number in PROFILES.items():
    settings.register_profile(name, max_examples=number)

SLOW_S = 5.0  # processor time of the process that runs a test, fixtures included
SLOW_TESTS = pytest.StashKey[list[str]]()
LONG_TESTS = pytest.StashKey[dict[str, Any]]()  # number left out, and those of this share for each file


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share", default="1/1", metavar="K/N", help="share of the tests marked long, such as 3/10, or 0/1"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "optimised: TensorFlow rewrites the graphs of the test, as those of a user")
    share_of(config.getoption("share"))


def share_of(text: str) -> tuple[int, int]:
    if not (found := re.fullmatch(r"(\d+)/([1-9]\d*)", text)):
        raise pytest.UsageError(f"--share must be K/N, such as 3/10, got '{text}'")
    return int(found[1]), int(found[2])


def is_played(config: pytest.Config, name: str) -> bool:
    """Whether the share that is played has the test, or the examples of the file, of this name."""
    share, shares = share_of(config.getoption("share"))
    return share == zlib.crc32(name.encode()) % shares + 1


def load_profile_of(node: pytest.Collector | pytest.Item) -> None:
    """Loads the profile of the file of tests that the node is in."""
    settings.load_profile("all" if is_played(node.config, node.nodeid.partition("::")[0]) else "quick")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """A file is imported after this, and its decorators take the profile that is loaded then."""
    load_profile_of(collector)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long_tests = [item for item in items if item.get_closest_marker("long")]
    left_out = {item for item in long_tests if not is_played(config, item.nodeid)}
    played = Counter(item.nodeid.partition("::")[0] for item in long_tests if item not in left_out)
    config.stash[LONG_TESTS] = {"left out": len(left_out), "played": dict(played)}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """What is there by now stays: to look for garbage in it again and again takes a twentieth of a graph test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    began_s = time.process_time()
    load_profile_of(item)
    result = yield
    if time.process_time() - began_s > SLOW_S and not item.get_closest_marker("long"):
        item.config.stash.setdefault(SLOW_TESTS, []).append(item.nodeid)
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist: the one that prints has collected nothing
        session.config.workeroutput["long tests"] = session.config.stash[LONG_TESTS]
        session.config.workeroutput["slow tests"] = session.config.stash.get(SLOW_TESTS, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of pytest-xdist has collected the same tests."""
    if "long tests" in getattr(node, "workeroutput", {}):
        node.config.stash[LONG_TESTS] = node.workeroutput["long tests"]
        node.config.stash.setdefault(SLOW_TESTS, []).extend(node.workeroutput["slow tests"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if slow := sorted(config.stash.get(SLOW_TESTS, [])):
        terminalreporter.write_line(f"slow tests, to be cheaper or long: {', '.join(slow)}")
    long_tests = config.stash.get(LONG_TESTS, {"left out": 0, "played": {}})
    if long_tests["left out"] and long_tests["played"]:
        files = ", ".join(f"{file} {count}" for file, count in sorted(long_tests["played"].items()))
        terminalreporter.write_line(f"share {config.getoption('share')} of the tests marked long: {files}")
    share, shares = share_of(config.getoption("share"))
    left_out = [f"{long_tests['left out']} tests marked long"] if long_tests["left out"] else []
    if (share, shares) != (1, 1):
        more, files = PROFILES["all"] - PROFILES["quick"], f"{shares - 1} of {shares} files" if share else "each file"
        left_out.append(f"{more} of {PROFILES['all']} examples that Hypothesis plays in {files}")
        terminalreporter.write_line(f"not run here: {', and '.join(left_out)} (make test-all)")


@pytest.fixture(autouse=True, scope="session")
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What processes that are killed leave behind goes with this one: TensorFlow's AutoGraph writes the functions of a
    dataset into files of its own, and `psruntime run` its logs.
    """
    folder = tmp_path_factory.mktemp("tmp")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TMPDIR", str(folder))
        patched.setattr(tempfile, "tempdir", None)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def control_flow_as_before() -> Iterator[None]:
    """A test that left this switch of TensorFlow changed would make others fail that run after it in its process."""
    yield
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow and not tensorflow.compat.v1.control_flow_v2_enabled():
        tensorflow.compat.v1.enable_control_flow_v2()
        pytest.fail("the test leaves control flow v2 switched off")
