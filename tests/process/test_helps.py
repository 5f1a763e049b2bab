"""Which flags each command has, which of them --help lists, and that each does something there or is checked.

The table is made of the code: a flag of a setting has an effect on a command if the modules of that command read it.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from psruntime import cli
from psruntime.config import JobConfig
from psruntime.config.job_settings import JobSettings
from psruntime.config.process import EvaluatorConfig, ProcessConfig, SecurityConfig, WorkerConfig
from psruntime.config.settings import flag_of, settings_of
from psruntime.launch.children import LauncherConfig
from psruntime.launch.sources import ClusterConfig
from psruntime.process import flags
from tests.support.docs import ROOT

HELPS = {"help", "help_all", "list_flags"}  # that each command has
STARTS = {  # command -> those whose processes it starts, or whose work depends on its settings
    "ps": ("worker",), **dict.fromkeys(("run", "demo", "compare"), ("ps", "worker")),
    "task": ("ps", "worker", "evaluator"),
}  # fmt: skip
MOST = {
    "plan": 10, "run": 14, "demo": 14, "worker": 16, "ps": 15, "evaluator": 12, "task": 16, "replay": 16, "compare": 15,
}  # fmt: skip
OTHERS_MOST = 14
OWNERS = {  # config -> what its objects are called
    JobConfig: ("job",), WorkerConfig: ("worker",), ProcessConfig: ("where",), EvaluatorConfig: ("wanted",),
    LauncherConfig: ("launcher",), ClusterConfig: ("config",), SecurityConfig: ("config", "settings"),
}  # fmt: skip
OWN_USES = {  # flags of which the help of some command says more, or another thing, than that of the others
    "checkpoint_dir", "connect_timeout_s", "coordinator", "devices", "follow", "host", "index", "json", "log_format",
    "metric", "metrics_port", "min_ps_bytes", "min_workers", "out", "plan", "port", "seed", "slice_bytes",
    "train_steps",
}  # fmt: skip
OF_EVALUATOR = {s.name for s in settings_of(EvaluatorConfig)}  # its patience is not that of the job's chief
READERS = {  # function of flags -> the settings that a command reads with it
    "checkpoint_folder": ["checkpoint_dir"],
    "coordinator_of": ["coordinator"],
    "job_settings": ["job"],
    "security_config": ["insecure", *(s.name for s in settings_of(SecurityConfig))],
}


class _Made(Exception):
    pass


@cache
def parser_of(command: str) -> flags.Parser:
    made: list[flags.Parser] = []

    def parse_args(self: flags.Parser, *_: object) -> None:
        made.append(self)
        raise _Made

    with patch.object(flags.Parser, "parse_args", parse_args), suppress(_Made):
        importlib.import_module(cli.module_of(command)).main([])
    return made[0]


def names(command: str, *titles: str) -> set[str]:
    """The names of its flags, of some headings or of all."""
    groups = [group for group in parser_of(command)._action_groups if not titles or group.title in titles]
    found = {action.dest for group in groups for action in group._group_actions if action.option_strings}
    return found - HELPS


@cache
def tree_of(path: Path | None) -> ast.Module:
    assert path
    return ast.parse(path.read_text())


@cache
def file_of(module: str) -> Path | None:
    path = ROOT / Path(*module.split("."))
    found = [each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()]
    return found[0] if found else None


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def files_of(command: str) -> frozenset[Path]:
    """The modules that its process imports, wherever they do so; and those of the processes that it starts."""
    wanted, found = [cli.module_of(each) for each in (command, *STARTS.get(command, ()))], set[Path]()
    while wanted:
        path = file_of(wanted.pop())
        if path and path not in found and path.is_relative_to(ROOT / "psruntime"):
            found.add(path)
            wanted += imported(tree_of(path))
    return frozenset(path for path in found if path != ROOT / "psruntime/process/flags.py")


def attributes(tree: ast.AST, owners: Iterable[str]) -> set[str]:
    """Those that are read of objects of these names, as `job.ps` and `self._job.ps`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            found |= {node.attr} if owner.strip("_") in owners else set()
    return found


@cache
def through_properties() -> dict[str, set[str]]:
    """Property or method of a config -> what it reads of its own."""
    found = dict[str, set[str]]()
    for config in (JobSettings, WorkerConfig, EvaluatorConfig):
        classes = [n for n in tree_of(file_of(config.__module__)).body if isinstance(n, ast.ClassDef)]
        (body,) = [each.body for each in classes if each.name == config.__name__]
        methods = [node for node in body if isinstance(node, ast.FunctionDef)]
        found |= {method.name: attributes(method, ("self",)) for method in methods}
    return found


@cache
def read_by(command: str) -> frozenset[str]:
    """The settings that the modules of a command read, and what else it reads of its command line."""
    found = set[str]()
    for path in files_of(command):
        of_config = path.is_relative_to(ROOT / "psruntime/config")
        owners = [] if of_config else [name for config in OWNERS for name in OWNERS[config]]
        found |= attributes(tree_of(path), owners)
    return frozenset(whole(found | read_itself(command, "arguments")))


def whole(read: set[str]) -> set[str]:
    """With what the properties among them read."""
    while more := {name for each in read for name in through_properties().get(each, ())} - read:
        read = read | more
    return read


def read_itself(command: str, *owners: str) -> set[str]:
    """What the module of a command reads of objects of these names, and by functions of `flags`."""
    tree = tree_of(file_of(cli.module_of(command)))
    found = attributes(tree, owners)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found |= set(READERS.get(getattr(node.func, "attr", ""), ()))
            if "arguments" in ast.unparse(node):  # as getattr(arguments, "coordinator", ...)
                found |= {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
    return found


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_flag_has_an_effect_or_is_checked(command: str) -> None:
    without = names(command) - names(command, flags.CHECKED) - read_by(command)
    assert not without, f"{command} reads none of {sorted(without)}"


@pytest.mark.parametrize("command", ["plan", "replay", "evaluate", "export", "tables", "evaluator"])
def test_the_flags_of_a_command_without_workers_are_the_settings_that_it_reads(command: str) -> None:
    offered, checked = names(command), names(command, flags.CHECKED)
    settings = {s.name for config in (JobConfig, WorkerConfig) for s in settings_of(config)} - checked - OF_EVALUATOR
    assert whole(read_itself(command, "worker", *([] if checked else ["job"]))) & settings == offered & settings


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_the_help_is_short_and_has_nothing_that_is_only_checked(command: str) -> None:
    listed = re.findall(r"^  (?:-h, )?(--[\w-]+)", parser_of(command).format_help(), re.MULTILINE)
    assert len(listed) <= MOST.get(command, OTHERS_MOST), listed
    assert not names(command, flags.MOST_USED) & names(command, flags.CHECKED)


def test_only_the_settings_of_the_job_are_checked_and_where_ps_0_is_another_process() -> None:
    every = {s.name for s in settings_of(JobConfig)}
    checked = {command: names(command, flags.CHECKED) for command in cli.COMMANDS}
    assert {command: found for command, found in checked.items() if found} == {
        "worker": every, "evaluator": every - OF_EVALUATOR,
    }  # fmt: skip
    for command in ("worker", "evaluator"):
        assert "\nchecked against the settings of the job:\n  --mode " in text_of(command)


def text_of(command: str) -> str:
    """What --help-all shows."""
    parser = parser_of(command)
    with patch.object(parser, "shows_all", True):
        return parser.format_help()


def test_a_flag_means_the_same_on_all_commands() -> None:
    texts: dict[str, set[str]] = {}
    for command in cli.COMMANDS:
        for action in parser_of(command)._actions:
            if action.option_strings and action.dest not in HELPS:
                texts.setdefault(action.dest, set()).add(re.sub(r" \(default: .*", "", action.help or ""))
    assert {name for name, said in texts.items() if len(said) > 1} == OWN_USES


@pytest.mark.parametrize("command", ["plan", "replay", "evaluator"])
def test_a_flag_without_effect_is_refused_in_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(cli.module_of(command))
    settings = {s.name for config in (JobConfig, WorkerConfig) for s in settings_of(config)}
    without = sorted(settings - names(command))
    assert ("slowdown" if command == "evaluator" else "lease_s") in without
    for name in without:
        with pytest.raises(SystemExit, match="2"):
            module.main([f"{flag_of(name)}=1"])
        refused = f"unrecognized argument {flag_of(name)}, which has no effect here; --help lists the flags"
        assert capsys.readouterr() == ("", f"psruntime {command}: {refused}\n")


@pytest.mark.parametrize("command", ["evaluate", "export", "tables", "replay"])
def test_of_the_folder_that_a_command_reads_it_does_not_say_when_it_is_written(command: str) -> None:
    about = re.search(r"--checkpoint-dir FOLDER (.*?)(?= --|$)", " ".join(text_of(command).split()))
    assert about and about[1] == "folder of the job's checkpoints, which are read (required)"
