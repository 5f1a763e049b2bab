"""Forks the processes of jobs that have TensorFlow imported already: 0.2 s instead of 3 s each.

A role "script" with the path of a Python script runs that one, as `python PATH` would.

Run as `python -m tests.support.zygote`.  One JSON line in: {"number": of this process, "argv": ["ps", "--index", "0",
...], "log": path, "path": [folders of modules], "as_built": whether its graphs run as they are built (as_built.py),
"world": what it sees of the machine (worlds.py) or null}.  JSON lines out: {"started": pid} for each, and {"ended":
number, "code": exit code} when one is gone; its pid may come again.
Forked before there is any Server or Session in this process.  When stdin ends, every child is killed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import runpy
import select
import signal
import sys
import traceback
from typing import Any

from psruntime.graph.base import environment
from tests.support.as_built import run_as_built
from tests.support.worlds import enter

ROLES = {
    "ps": "psruntime.ps",
    "worker": "psruntime.worker",
    "evaluator": "psruntime.commands.evaluator",
    "evaluate": "psruntime.commands.evaluate",
    "export": "psruntime.commands.export",
    "task": "psruntime.task",
    "replay": "psruntime.commands.replay",
    "inventory": "tests.support.inventory",
    "snapshot": "tests.support.snapshot",
}
LATER = (  # what these import once they run, TensorFlow with it
    "psruntime.examples.digits",
    "psruntime.examples.fashion_mnist",
    "psruntime.graph.checkpoint.measured",
    "psruntime.graph.export.write",
    "psruntime.graph.model.evaluate",
    "psruntime.ps_member",
    "psruntime.classic.training_session",
    "psruntime.training",
)
PR_SET_PDEATHSIG = 1  # prctl(2): a child is killed with its parent, whatever happens to that one
LOOK_S = 0.02  # how soon the end of a child is told


def main() -> int:
    environment.prepare()
    for module in (*ROLES.values(), *LATER):
        importlib.import_module(module)

    children: dict[int, int] = {}  # pid -> number
    tell(ready=os.getpid())
    while True:
        if select.select([0], [], [], LOOK_S)[0]:
            line = sys.stdin.readline()
            if not line:
                break
            order = json.loads(line)
            pid = start(order)
            children[pid] = order["number"]
            tell(started=pid)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                tell(ended=children.pop(pid), code=os.waitstatus_to_exitcode(status))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return 0


def module_of(role: str) -> list[str]:
    """How Python is started for a role."""
    return ["-m", "psruntime", role] if ROLES[role].startswith("psruntime.commands.") else ["-m", ROLES[role]]


def tell(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def start(order: dict[str, Any]) -> int:
    """Forks; the child becomes what `psruntime <role>` would be."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable()
        role, *argv = order["argv"]
        if world := order.get("world"):
            path = os.pathsep.join([*order["path"], os.getcwd()])
            enter(world)
            if world["environment"]:
                command = [sys.executable, *([] if role == "script" else module_of(role)), *argv]
                os.execve(sys.executable, command, {**os.environ, **world["environment"], "PYTHONPATH": path})
        if order["as_built"]:
            run_as_built(setattr)
        sys.path[:0] = order["path"]
        if role == "script":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as a terminal's shell leaves it
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
            code = 0
        else:
            code = sys.modules[ROLES[role]].main(argv)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - a forked child must not return into the loop of its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
