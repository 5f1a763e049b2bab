"""The layout, enforced: the rooms of tools/rooms.py, and who may import what from outside psruntime.

entry points -> rpc, graph, observe -> core -> config, errors
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tools import rooms
from tools.rooms import imports

ROOT = Path(__file__).parents[1]
GENERATED = "psruntime/v1"

JOB = {"psruntime.config.JobConfig", "psruntime.config.job", "psruntime.config.job_settings"}
LAUNCHED = JOB | {"psruntime.config.process", "psruntime.config.settings", "psruntime.config.values.whole_path"}

# What a part may import besides itself and the standard library.
MAY_IMPORT: dict[str, set[str]] = {
    "psruntime/core": JOB | {
        "psruntime.errors", "psruntime.config.process", "psruntime.config.schedule",
        *(f"psruntime.config.values.{name}" for name in ("AUTO", "BoundRange", "bound_of")),
    },
    "psruntime/errors.py": set(),
    "psruntime/config": {"psruntime.errors"},
    "psruntime/config/settings.py": {"psruntime.errors"},
    "psruntime/config/values.py": {"psruntime.errors"},
    "psruntime/config/schedule.py": {"psruntime.errors", "psruntime.config.settings"},
    "psruntime/config/process.py": {
        "psruntime.errors", "psruntime.config.settings", "psruntime.config.values.Metric",
    },
    "psruntime/faults.py": {"psruntime.errors"},
    "psruntime/model.py": {"psruntime.errors", "psruntime.config.settings", "psruntime.faults"},
    **{
        f"psruntime/launch/{source}.py": LAUNCHED | {"psruntime.errors", "psruntime.launch"}
        for source in ("cluster_task", "slurm", "sources", "tf_config")
    },
    "psruntime/launch": LAUNCHED | {
        "psruntime.errors", "psruntime.model.find_model", "psruntime.observe.log", "psruntime.observe.outputs",
        "psruntime.observe.records", "psruntime.process.job_file", "psruntime.graph.checkpoint.listing.CheckpointList",
        "cloudpickle",
    },
    "psruntime/network": {"psruntime.core", "psruntime.errors", "psruntime.config.process"},
    "psruntime/dashboard/drawing.py": {"psruntime.errors", "bokeh"},
    "psruntime/dashboard/history.py": JOB | {
        "psruntime.core", "psruntime.errors", "psruntime.observe", "psruntime.dashboard.job_events",
        "psruntime.config.schedule",
    },
    "psruntime/dashboard/job_events.py": JOB | {"psruntime.core", "psruntime.errors", "psruntime.observe"},
    "psruntime/dashboard": JOB | {
        "psruntime.core", "psruntime.errors", "psruntime.observe", "psruntime.config.schedule", "bokeh", "tornado",
    },
    "psruntime/observe/evaluations.py": {
        "psruntime.errors", "psruntime.config.values.Metric", "psruntime.observe.outputs",
    },
    "psruntime/observe/traces.py": {"psruntime.errors"},
    "psruntime/observe": JOB | {
        "psruntime.core", "psruntime.errors", "psruntime.config.process", "psruntime.network", "psruntime.faults",
        "psruntime.config.schedule", "psruntime.config.values.Metric", "rich", "pyarrow", "prometheus_client",
    },
}  # fmt: skip

# The core decides: it reads no clock, makes no random numbers, starts and reaches nothing.
FORBIDDEN_IN_CORE = {
    "time", "datetime", "threading", "asyncio", "socket", "os", "random", "secrets", "logging", "subprocess",
}  # fmt: skip

PROGRAMS = tuple(
    f"psruntime/{part}"
    for part in ("ps.py", "ps_member.py", "worker.py", "training.py", "task.py", "run.py", "completion.py", "commands",
                 "classic")
)  # fmt: skip

# What only these parts may import.
ONLY_IMPORTED_BY = {
    ("grpc", "grpc_health", "google.protobuf", "psruntime.v1"): ("psruntime/rpc", "psruntime/v1"),
    ("tensorflow", "tf_keras", "keras"): tuple(
        f"psruntime/{part}" for part in ("graph", "optimizers.py", "examples", "templates", "classic")
    ),
    ("prometheus_client",): ("psruntime/observe/metrics.py", "psruntime/observe/worker_metrics.py"),
    ("psruntime.process.process", "psruntime.process.flags"): PROGRAMS,
}

# What psruntime/graph may annotate as Any, or by a type with Any in it, instead of by the names of graph/base/types.py:
# what is fetched, and what users give or get, in any structure; facts as JSON has them; what is passed on.
# A name is that of a parameter; one with () is that of a function whose result is Any.
MAY_BE_ANY = {
    "fetched", "fetches", "requests", "step", "write", "_run()", "call()", "run()", "run_on_job()",
    "element", "features", "features()", "initializer", "labels", "leaf", "structure",
    "facts", "record", "_finite()", "_noted()",
    "_args", "_kwargs", "args", "arguments", "call", "event", "future", "kinds", "kwargs", "more", "settings",
    "_of_step()", "_or_lost()", "or_lost()",
    "known", "of_buckets", "Pack()", "__getattr__()", "_lite_rt()", "uncolocated()",
}  # fmt: skip

# A small house with its arrows; each change of it below breaks a law.
HOUSE = {
    "psruntime.worker": "import psruntime.graph.session.session\nfrom psruntime.core.plan.plan import Plan",
    "psruntime.graph.session.session": "from psruntime.graph.base import server",
    "psruntime.graph.base.server": "import os",
    "psruntime.core.plan.plan": "from psruntime.errors import UsageError",
    "psruntime.core.clocks.pace": "",
    "psruntime.core.rounds.sync_rounds": "",
    "psruntime.rpc.wire.statuses": "",
    "psruntime.errors": "",
}


def sources(*parts: str) -> Iterator[tuple[str, str]]:
    """Path relative to the root, and text, of each Python file of these parts; a part is a file or a folder."""
    for part in parts:
        path = ROOT / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []:
            yield file.relative_to(ROOT).as_posix(), file.read_text()


def is_in(name: str, packages: Collection[str]) -> bool:
    """Whether a dotted name is one of these packages, or in one."""
    return any(rooms.is_in(name, package) for package in packages)


def lies_in(path: str, parts: tuple[str, ...]) -> bool:
    return any(path == part or path.startswith(part + "/") for part in parts)


def forbidden(part: str, text: str) -> list[str]:
    """What a source of a part of `MAY_IMPORT` imports although it may not."""
    own = part.removesuffix(".py").replace("/", ".")
    allowed = MAY_IMPORT[part] | {own} | sys.stdlib_module_names
    never = FORBIDDEN_IN_CORE if part == "psruntime/core" else set[str]()
    return [name for name in imports(text) if not is_in(name, allowed) or is_in(name, never)]


def test_no_arrow_goes_up_and_there_is_no_circle() -> None:
    found = rooms.arrows(rooms.sources())
    assert len(found) > 100
    broken = rooms.complaints(found)
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        (
            "psruntime.graph.base.server",
            "import psruntime.graph.session.session",
            "goes up from graph.base to graph.session",
        ),
        ("psruntime.core.plan.plan", "def f():\n    import psruntime.worker", "goes up from core.plan to worker"),
        (
            "psruntime.core.clocks.pace",
            "from psruntime.core.rounds import sync_rounds",
            "goes sideways from core.clocks",
        ),
        (
            "psruntime.graph.session.session",
            "import psruntime.rpc.wire.statuses",
            "rpc and graph do not know each other",
        ),
        ("psruntime.rpc.wire.statuses", "import psruntime.graph.base.server", "rpc and graph do not know each other"),
        (
            "psruntime.errors",
            "import psruntime.core.plan.plan",
            "a circle: psruntime.core.plan.plan -> ",
        ),
        ("psruntime.attic.box", "", "attic stands on no floor"),
        ("psruntime.graph.attic.box", "", "graph.attic stands on no floor"),
    ],
)
def test_a_broken_law_would_be_found(module: str, text: str, said: str) -> None:
    assert rooms.complaints(rooms.arrows(HOUSE)) == []
    assert any(said in line for line in rooms.complaints(rooms.arrows({**HOUSE, module: text})))


def test_a_circle_within_a_room_is_found() -> None:
    circle = {
        "psruntime.core.plan.plan": "from psruntime.core.plan import buckets",
        "psruntime.core.plan.buckets": "if TYPE_CHECKING:\n    from psruntime.core.plan.plan import Plan",
    }
    (path,) = rooms.circles(rooms.arrows(circle))
    assert path == ["psruntime.core.plan.buckets", "psruntime.core.plan.plan", "psruntime.core.plan.buckets"]


def test_habits_are_told_and_break_nothing() -> None:
    texts = {"psruntime.worker": "#\n" * (rooms.LONG_FILE + 1)}
    assert rooms.habits(texts) == [f"psruntime.worker has {rooms.LONG_FILE + 1} lines, more than {rooms.LONG_FILE}"]
    assert rooms.complaints(rooms.arrows(texts)) == []


def test_every_room_says_what_lives_there() -> None:
    silent = [
        path
        for path, text in sources("psruntime")
        if path.endswith("/__init__.py") and not lies_in(path, (GENERATED,)) and not text.startswith('"""')
    ]
    assert not silent


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_it_may(part: str) -> None:
    bad = [f"{path} imports {name}" for path, text in sources(part) for name in forbidden(part, text)]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("packages", ONLY_IMPORTED_BY, ids="-".join)
def test_some_packages_are_for_some_parts_only(packages: tuple[str, ...]) -> None:
    parts = ONLY_IMPORTED_BY[packages]
    bad = [
        f"{path} imports {name}, which is for {' and '.join(parts)}"
        for path, text in sources("psruntime")
        if not lies_in(path, parts)
        for name in imports(text)
        if is_in(name, packages)
    ]
    assert not bad, "\n".join(bad)


def any_in(text: str) -> Iterator[str]:
    """What a source annotates by Any, as `MAY_BE_ANY` names it."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.arg(arg=name, annotation=ast.AST() as annotation):
                if any(isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(annotation)):
                    yield name
            case ast.FunctionDef(name=name, returns=ast.Name(id="Any")):
                yield f"{name}()"


def test_what_tensorflow_makes_is_annotated_by_its_name() -> None:
    found = {name: path for path, text in sources("psruntime/graph") for name in any_in(text)}
    bad = [f"{found[name]}: {name} is Any; see graph/base/types.py" for name in found.keys() - MAY_BE_ANY]
    assert not bad, "\n".join(bad)
    assert not MAY_BE_ANY - found.keys(), "these are Any nowhere; take them off the list"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(gradient: Any) -> None: ...", ["gradient"]),
        ("def f(*, rows: list[Any] | None) -> None: ...", ["rows"]),
        ("class A:\n    def f(self, of: Callable[[Any], int]) -> Any: ...", ["f()", "of"]),
        ("def f(gradient: Tensor) -> Tensor: ...", []),
    ],
)
def test_an_any_is_found(text: str, names: list[str]) -> None:
    assert sorted(any_in(text)) == names


def test_imports_are_absolute() -> None:
    bad = [path for path, text in sources("psruntime") if not lies_in(path, (GENERATED,)) and "." in set(imports(text))]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import time", "time"),
        ("import psruntime.core.view as v, grpc", "grpc"),
        ("from os import path", "os.path"),
        ("from psruntime import rpc", "psruntime.rpc"),
        ("from psruntime.rpc.client.join import retrying", "psruntime.rpc.client.join.retrying"),
        ("from . import clocks", "."),
        ("def f():\n    if True:\n        import tensorflow.compat.v1 as tf1", "tensorflow.compat.v1"),
        ("class A:\n    import grpc", "grpc"),
        ("if TYPE_CHECKING:\n    from numpy import ndarray", "numpy.ndarray"),
        ("import importlib\ntf = importlib.import_module('tensorflow')", "tensorflow"),
        ("tf = __import__('tensorflow')", "tensorflow"),
    ],
)
def test_an_import_is_found_wherever_it_hides(text: str, name: str) -> None:
    assert name in list(imports(text))
    assert name in forbidden("psruntime/core", text)


def test_what_a_part_may_import_is_not_reported() -> None:
    text = "from dataclasses import field\nfrom psruntime.core.plan import plan\nimport psruntime.errors\nimport timeit"
    assert forbidden("psruntime/core", text) == []
    assert forbidden("psruntime/observe", text + "\nfrom rich.table import Table\nimport time") == []
    assert forbidden("psruntime/observe", "import richer") == ["richer"]
