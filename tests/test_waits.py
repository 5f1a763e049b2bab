"""docs/waits.md names every wait of the product, and no place that is not there.

A wait is a call that may block: of a thread, a lock, an event, a process, a socket, a session of TensorFlow, the
system's resolver, or an `await` of what is no coroutine of the product itself.  Files, and locks that are held for a
few lines, are not looked for; the document has them in one row.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/waits.md"
NAMED = re.compile(r"`([\w/]+\.py)::([\w.*]+)`")
GENERATED = "psruntime/v1"

BLOCKING = {
    "acquire", "accept", "communicate", "connect", "create_connection", "getaddrinfo", "recv", "result",
    "select", "sleep", "sock_connect", "wait_closed", "wait_for", "wait_for_ready", "wait_for_termination",
    "wait_until", "wait", "wrap_socket",
}  # fmt: skip
BLOCKING_OF = {  # by how the name of their object ends; of another object they are something else
    "run": ("session", "super()", "asyncio", "subprocess"),
    "close": ("session",),
    "gather": ("asyncio",),  # and of TensorFlow, which builds an operation
    "read": ("os", "stdin"),
    "get": ("queue",),
    "put": ("queue",),
}
SESSION = re.compile(r"(.*\.)?session\.(run|close)")
OF_SESSIONS = "*"  # all that a file does with a `session` that it is given; its own ones are named one by one
Place = tuple[str, str]  # file as the document has it, and `Class.method`, `function` or OF_SESSIONS


@cache
def sources() -> dict[str, ast.Module]:
    """By file as the document has it, without `psruntime/`, what is in it."""
    files = sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / "psruntime").rglob("*.py"))
    return {
        file.removeprefix("psruntime/"): ast.parse((ROOT / file).read_text())
        for file in files
        if not file.startswith(GENERATED)
    }


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Functions and methods with their names; what is within one belongs to it, and what is in none to `module`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name, node
        else:
            yield f"{within}module", node


def coroutines(trees: Iterator[ast.Module] | list[ast.Module]) -> set[str]:
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)}


def may_block(call: ast.Call) -> bool:
    if any(keyword.arg == "timeout" for keyword in call.keywords):
        return True
    if isinstance(call.func, ast.Name):
        return call.func.id in BLOCKING
    if not isinstance(call.func, ast.Attribute):
        return False
    name, of = call.func.attr, call.func.value
    if name == "join":  # of a thread it has at most a number; of a text or of paths it is none
        return not (isinstance(of, ast.Constant | ast.JoinedStr) or ast.unparse(of) == "os.path" or len(call.args) > 1)
    if name in BLOCKING_OF:
        return ast.unparse(of).lower().endswith(BLOCKING_OF[name])
    return name in BLOCKING


def is_wait(node: ast.AST, own_coroutines: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return may_block(node)
    if isinstance(node, ast.Await):
        func = node.value.func if isinstance(node.value, ast.Call) else node.value
        name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        return name not in own_coroutines
    return isinstance(node, ast.AsyncFor | ast.AsyncWith)


def waits(tree: ast.Module, own_coroutines: set[str]) -> set[str]:
    """The functions of a module that wait themselves."""
    return {
        OF_SESSIONS if isinstance(node, ast.Call) and SESSION.fullmatch(ast.unparse(node.func)) else name
        for name, body in functions(tree)
        for node in ast.walk(body)
        if is_wait(node, own_coroutines)
    }


@cache
def waits_of_the_product() -> set[Place]:
    own_coroutines = coroutines(list(sources().values()))
    return {(file, name) for file, tree in sources().items() for name in waits(tree, own_coroutines)}


def named() -> list[Place]:
    return NAMED.findall(DOCUMENT.read_text())


def test_every_wait_of_the_product_is_in_the_document() -> None:
    missing = sorted(waits_of_the_product() - set(named()))
    assert not missing, f"docs/waits.md lacks what ends these waits: {['::'.join(place) for place in missing]}"


def test_what_the_document_names_is_there() -> None:
    there = {(file, name) for file, tree in sources().items() for name in [OF_SESSIONS, *dict(functions(tree))]}
    of_sessions = {place for place in waits_of_the_product() if place[1] == OF_SESSIONS}
    gone = [place for place in named() if place not in there or (place[1] == OF_SESSIONS and place not in of_sessions)]
    assert named() and not gone


def test_the_document_can_be_read_in_one_go() -> None:
    assert len(DOCUMENT.read_text().splitlines()) <= 200


@pytest.mark.parametrize(
    "statement",
    [
        "thread.join()", "self._thread.join(1.0)", "event.wait()", "done.wait(timeout=3)", "call.result()",
        "lock.acquire()", "time.sleep(1)", "sleep(1)", "seat.wait_until(ready, None)", "process.communicate()",
        "subprocess.run(command)", "self._queue.get()", "os.read(0, 1)", "sock.recv(9)", "rpc(request, timeout=5)",
        "self._session.run(op)", "super().run(fetches)", "socket.getaddrinfo(host, port)",
        "names = [x.wait() for x in y]", "await asyncio.sleep(1)", "await done", "await server.start()",
        "f = lambda: thread.join()",
    ],
)  # fmt: skip
def test_a_wait_is_found(statement: str) -> None:
    body = f"class A:\n    async def b(self):\n        def c():\n            pass\n        {statement}\n"
    assert waits(ast.parse(body), {"ours"}) == {"A.b"}


@pytest.mark.parametrize(
    "statement",
    [
        "', '.join(names)", "f'{a}'.join(names)", "os.path.join(a, b)", "coordinator.join(join, number, now_s)",
        "child.poll()", "settings.get('a')", "file.read()", "channel.close()", "loop.run()", "await ours()",
        "await self.ours(1)", "rounds.waits_for(chief)",
    ],
)  # fmt: skip
def test_what_does_not_block_is_none(statement: str) -> None:
    assert waits(ast.parse(f"async def b():\n    {statement}\n"), {"ours"}) == set()


def test_runs_of_a_session_that_is_given_are_those_of_the_file() -> None:
    text = "def a(session):\n    session.run(op)\n\ndef b(self):\n    self.session.close()\n\nx.wait()\n"
    assert waits(ast.parse(text), set()) == {OF_SESSIONS, "module"}
