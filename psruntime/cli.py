"""The command `psruntime`: finds the subcommand and hands it the rest of the command line.

Imports nothing of a subcommand before it is asked for, so --version and --help answer at once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from psruntime import __version__
from psruntime.config.settings import suggestion
from psruntime.errors import EXIT_DONE, EXIT_USAGE
from psruntime.observe.outputs import entry

PROG = "psruntime"
COMMANDS = {  # name -> what it does; main() of the module of this name
    "init": "write a small model into the current folder, or one for CSV files of yours",
    "demo": "run the example of digits on this machine, with 2 ps and 2 workers",
    "run": "run a whole job on this machine",
    "compare": "run a job in several modes, and draw what becomes of it",
    "ps": "start one parameter server; ps 0 hosts the coordinator",
    "worker": "start one worker",
    "evaluator": "measure each new checkpoint of a job",
    "evaluate": "measure the checkpoints of a folder, without a job",
    "task": "start one task of a cluster: its role and index from TF_CONFIG, Slurm or lists of hosts",
    "status": "show a running job",
    "dashboard": "show a running job in a browser",
    "control": "steer a running job: pause, save, change its mode or learning rates, end it",
    "replay": "train one process on the batches of a sync job, and compare",
    "plan": "show where a model's variables would live, without a job",
    "export": "write a SavedModel of a checkpoint, for serving",
    "trace": "say where the time of a step goes, by a trace of a job",
    "tables": "show the dynamic tables of a checkpoint, and export them",
    "completion": "write what completes the commands and flags in bash, zsh or fish",
}
PROGRAMS = ("ps", "worker", "task", "run")  # in psruntime, for `python -m psruntime.NAME`
DEMO = ("run", "--ps=2", "--workers=2", "--train-steps=2000")
OPTIONS = ("--help", "--version")
TRAIN = "train"  # what others call the command that runs a job


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns its exit code.  Without `argv` it is the whole process."""
    if argv is None:
        return entry(lambda: main(sys.argv[1:]))
    words = list(argv)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    first = words[0] if words else ""
    if first in COMMANDS:
        given = [*DEMO[1:], *words[1:]] if first == "demo" else words[1:]
        code: int = importlib.import_module(module_of(first)).main(given)
        return code
    if first == "--version":
        sys.stdout.write(f"{PROG} {__version__}\n")
        return EXIT_DONE
    if first in ("-h", "--help"):
        sys.stdout.write(_help())
        return EXIT_DONE
    if not first:
        sys.stderr.write(_help())
        return EXIT_USAGE
    what, known = ("argument", OPTIONS) if first.startswith("-") else ("command", tuple(COMMANDS))
    hint = suggestion(first, (*known, TRAIN)).replace(TRAIN, "run") or f"; known are {', '.join(known)}"
    sys.stderr.write(f"{PROG}: unknown {what} '{first}'{hint}\n")
    return EXIT_USAGE


def module_of(command: str) -> str:
    """The module whose main() is the command."""
    command = DEMO[0] if command == "demo" else command
    return f"psruntime.{command}" if command in (*PROGRAMS, "completion") else f"psruntime.commands.{command}"


def _help() -> str:
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join([
        f"usage: {PROG} COMMAND [flags]",
        "",
        "Parameter-server training of TensorFlow graphs.",
        "",
        *lines,
        "",
        f"{PROG} COMMAND --help lists the flags of a command, --help-all also those that are seldom needed; "
        f"{PROG} --version says the version.",
        "",
    ])  # fmt: skip
