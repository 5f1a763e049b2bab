"""Gives the command lines of the documents to our own argument parsers; nothing is started."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from psruntime import cli, completion, ps, run, task, worker
from psruntime.commands import (
    compare,
    control,
    dashboard,
    evaluate,
    evaluator,
    export,
    init,
    plan,
    replay,
    status,
    tables,
    trace,
)
from psruntime.config.process import SecurityConfig
from psruntime.errors import UnreachableError
from psruntime.process import job_file
from psruntime.rpc.wire.security import Security
from tests.support.docs import ROOT, flags_in, flags_of_script

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ELSEWHERE = {
    ".",
    "cat",
    "cd",
    "cp",
    "grep",
    "head",
    "ls",
    "mkdir",
    "sed",
    "tail",
    "tensorboard",
    "venv",
}  # commands that are not ours
FLAGS_ELSEWHERE = {  # of kubectl, Slurm, systemd, useradd, pip and TensorBoard
    "--from-file", "--gpus-per-node", "--home-dir", "--kill-on-bad-exit", "--logdir", "--no-deps", "--now", "--ntasks",
    "--shell", "--system", "--wait",
}  # fmt: skip


def _run(argv: list[str]) -> int:
    with patch.multiple(run, run_job=lambda *_: 0, find_model=lambda _: None, log_folder=Path):
        return run.main(argv)


def _init(argv: list[str]) -> int:
    with patch.multiple(init, write_model=lambda *_: None, write_model_of=lambda *_: ""):
        return init.main(argv)


def _ask_nobody(*_: Any) -> Any:
    raise UnreachableError("not asked")


def _load_nothing(config: SecurityConfig, **_: Any) -> Security:
    """The files that a document names are not there; with TLS a ps may serve other machines."""
    return cast(Security, SimpleNamespace(tls=bool(config.tls_ca), tokens=(), insecure=config.is_insecure))


def _control(argv: list[str]) -> int:
    with patch.multiple(control, CoordinatorClient=_ask_nobody, load_security=_load_nothing):
        try:
            return control.main(argv)
        except UnreachableError:
            return 0


def _status(argv: list[str]) -> int:
    with patch.multiple(status, CoordinatorClient=_ask_nobody, load_security=_load_nothing):
        try:
            return status.main(argv)
        except UnreachableError:
            return 0


def _dashboard(argv: list[str]) -> int:
    with patch.multiple(dashboard, _serve=lambda *_: 0, require_bokeh=lambda _: None, load_security=_load_nothing):
        return dashboard.main(argv)


def _plan(argv: list[str]) -> int:
    with patch.multiple(plan, _specs=lambda *_: ()):
        return plan.main(argv)


def _replay(argv: list[str]) -> int:
    with patch.multiple(replay, _replay=lambda *_: replay.Comparison((1, 1), "", "", {"": 0.0}, {}, [])):
        return replay.main(argv)


def _tables(argv: list[str]) -> int:
    with patch.multiple(tables, _newest=lambda _: [], _chosen=lambda *_: [], _export=lambda *_: None):
        return tables.main(argv)


def _trace(argv: list[str]) -> int:
    with patch.multiple(trace, _show=lambda *_: 0):
        return trace.main(argv)


def _evaluate(argv: list[str]) -> int:
    with patch.multiple(evaluate, _measure=lambda *_: 0):
        return evaluate.main(argv)


def _export(argv: list[str]) -> int:
    with patch.multiple(export, _export=lambda *_: 0):
        return export.main(argv)


def _compare(argv: list[str]) -> int:
    nothing = {name: lambda *_: None for name in ("require_bokeh", "_writable", "_train")}
    with patch.multiple(compare, find_model=lambda _: None, _show=lambda *_: 0, **nothing):
        return compare.main(argv)


def _task(argv: list[str]) -> int:
    """As the first task of a cluster of any size."""
    cluster = {"ps": {"0": "127.0.0.1:2222"}, "worker": {"0": "127.0.0.1:2223"}}
    config = json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}})
    with patch.dict(os.environ, {"TF_CONFIG": config}):
        return task.main(argv)


PROGRAMS: dict[str, Callable[[list[str]], int]] = {
    "psruntime.ps": ps.main,
    "psruntime.worker": worker.main,
    "psruntime evaluator": evaluator.main,
    "psruntime evaluate": _evaluate,
    "psruntime export": _export,
    "psruntime.task": _task,
    "psruntime status": _status,
    "psruntime dashboard": _dashboard,
    "psruntime control": _control,
    "psruntime plan": _plan,
    "psruntime replay": _replay,
    "psruntime tables": _tables,
    "psruntime trace": _trace,
    "psruntime compare": _compare,
    "psruntime.run": _run,
    "psruntime init": _init,
    "psruntime completion": completion.main,
}


def complaint(words: list[str], scripts: Mapping[str, str], made: Collection[str] = ()) -> str:
    """What is wrong with a command line; empty if nothing.

    scripts: file name -> text, of those in the same document.  made: the models that its `psruntime init` writes.
    """
    program, argv = (words[2], words[3:]) if words[:2] == ["python", "-m"] else (words[0], words[1:])
    if program == "launch/local.sh":
        program, argv = "psruntime.run", argv[argv[:1] == ["--alone"] :]
    if program == "launch/ssh.sh":
        program, argv = "psruntime.task", argv[1:]
    if program == "psruntime":
        if not argv or argv[0] not in cli.COMMANDS:
            return _of_dispatch(argv)
        argv = [*cli.DEMO, *argv[1:]] if argv[0] == "demo" else argv
        program, argv = f"psruntime{'.' if argv[0] in cli.PROGRAMS else ' '}{argv[0]}", argv[1:]
    if program in PROGRAMS:
        return _of_program(program, argv, scripts, made)
    if program.startswith("psruntime.examples."):
        example = ROOT / Path(*program.split(".")).with_suffix(".py")
        return _of_script([example.name, *argv], {example.name: example.read_text()})
    if program == "python":
        return _of_script(argv, scripts)
    if program == "pip":
        return _of_pip(argv)
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return "" if argv[0] in targets else f"the Makefile has no {argv[0]}"
    return "" if program in ELSEWHERE else f"nobody checks {program}"


def known_flags() -> set[str]:
    """Of all programs, from their help, and those of others that the documents name."""
    text = ""
    for main in PROGRAMS.values():
        with _nothing_runs() as output, redirect_stdout(output):
            try:
                main(["--help-all"])
            except SystemExit:
                text += output.getvalue()
    scripts = "".join(script.read_text() for script in (ROOT / "launch").glob("*.sh"))
    return flags_in(text + scripts) | FLAGS_ELSEWHERE


def _of_program(program: str, argv: list[str], scripts: Mapping[str, str], made: Collection[str]) -> str:
    with _nothing_runs() as output:
        try:
            code = PROGRAMS[program](argv)
        except SystemExit as error:
            code = int(error.code or 0)
    if code:
        return output.getvalue() or f"code {code}"
    for flag, model in re.findall(r"(--model)[ =](\S+)", " ".join(argv)):
        ours = (ROOT / Path(*model.split("."))).with_suffix(".py").is_file()
        if not ours and f"{model}.py" not in scripts and model not in made:
            return f"{flag} {model} is neither ours nor in the document"
    return ""


def _of_dispatch(argv: list[str]) -> str:
    with redirect_stderr(io.StringIO()) as complaints, redirect_stdout(io.StringIO()):
        return complaints.getvalue() if cli.main(argv) else ""


def _of_pip(argv: list[str]) -> str:
    """An installation of the folder or of psruntime, with extras that there are."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in argv[1:] if argv[:1] == ["install"] else ["?"]:
        found = re.fullmatch(r"(?:-e|\.|psruntime|[\w./-]+\.whl)(?:\[([\w,]+)\])?", word)
        if not found:
            return f"pip {' '.join(argv)} is no installation of psruntime"
        if found[1] and (unknown := set(found[1].split(",")) - set(extras)):
            return f"there is no extra {', '.join(sorted(unknown))}"
    return ""


def _of_script(argv: list[str], scripts: Mapping[str, str]) -> str:
    if argv[0] not in scripts:
        return f"the document has no {argv[0]}"
    unknown = {word.partition("=")[0] for word in argv if word.startswith("--")} - flags_of_script(scripts[argv[0]])
    return f"{argv[0]} has no {', '.join(sorted(unknown))}" if unknown else ""


@contextmanager
def _nothing_runs() -> Iterator[io.StringIO]:
    """ps, worker and evaluator end where their work would begin; what they say is collected."""
    output = io.StringIO()
    quiet = {"run": lambda *_: 0, "Log": lambda *_: None, "load_security": _load_nothing}
    with ExitStack() as stack, redirect_stderr(output), patch.multiple(job_file, require_there=lambda _: None):
        for program in (ps, worker, evaluator):
            stack.enter_context(patch.multiple(program, **quiet))
        yield output
