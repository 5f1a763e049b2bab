"""What `make test` leaves out and says that it leaves out.

Tests that are long by nature have the marker `long`: `make test` deselects them, `make test-all` runs them.  More
cases of the same have the marker `nightly`, and only `make test-nightly` runs these.  How many
examples Hypothesis plays is a profile: "quick" for `make test`, "long" (the default) for `make test-all`, "nightly".
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings

PROFILES = {"quick": 20, "long": 50, "nightly": 100}
for name, number in PROFILES.items():
    settings.register_profile(name, max_examples=number)
settings.load_profile("long")  # before the modules of tests are imported; --hypothesis-profile names another

NOT_RUN = pytest.StashKey[int]()  # tests marked long or nightly that this run has left out


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOT_RUN] = 0


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        item.config.stash[NOT_RUN] += any(item.get_closest_marker(name) for name in ("long", "nightly"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist: another one tells
        session.config.workeroutput["not_run"] = session.config.stash[NOT_RUN]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of pytest-xdist has collected all tests, and left out the same."""
    node.config.stash[NOT_RUN] = getattr(node, "workeroutput", {}).get("not_run", node.config.stash[NOT_RUN])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = [f"{config.stash[NOT_RUN]} tests marked long or nightly"] if config.stash[NOT_RUN] else []
    if (share := 100 - settings().max_examples) > 0:
        left_out.append(f"{share} of 100 examples that Hypothesis plays")
    if left_out:
        terminalreporter.write_line(f"not run here: {', and '.join(left_out)} (make test-all, make test-nightly)")


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
