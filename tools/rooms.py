"""The rooms of psruntime and the arrows between them: who imports whom.

    python -m tools.rooms            the picture, warnings, errors
    python -m tools.rooms --check    without the picture

A room is a folder of psruntime, or of psruntime/core, rpc or graph; the modules beside these folders are rooms too.
FLOORS lists them from top to bottom.  An import goes down to a lower floor or stays in its room.  It never goes up,
never sideways, and no modules import each other in a circle.  rpc and graph do not know each other.

Every import counts: those within functions, those under TYPE_CHECKING, and importlib with a literal name.
The command prints the rooms with their arrows, and warns of long files and crowded rooms, which are habits, not laws.
It exits with 1 if a law is broken.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "psruntime"
GENERATED = "psruntime.v1"
SPLIT = ("core", "rpc", "graph")  # packages whose folders are rooms of their own

FLOORS: tuple[tuple[str, ...], ...] = (
    ("__main__", "completion"),
    ("cli",),  # finds the entry points by their names
    ("task",),  # becomes one of the next by its name
    ("ps", "worker", "run", "commands"),
    ("examples", "templates"),
    ("psruntime",),  # the public names
    ("classic", "training", "ps_member"),
    ("launch", "study"),
    ("dashboard",),
    ("rpc.worker",),
    ("rpc.client", "rpc.server"),
    ("rpc.wire",),
    ("graph.loop",),
    ("graph.session",),
    ("graph.recovery", "graph.export", "graph.replay"),
    ("graph.checkpoint",),
    ("graph.step",),
    ("graph.model",),
    ("graph.input", "graph.embedding"),
    ("graph.push",),
    ("graph.buckets",),
    ("graph.base",),
    ("process",),
    ("observe",),
    ("network",),
    ("core.coordinator",),
    ("core.recovery", "core.accounting", "core.rounds", "core.clocks"),
    ("core.members",),
    ("core.plan", "core.shards", "core.steering"),
    ("model", "optimizers", "own_data"),
    ("config", "core.fields", "core.state_table"),
    ("faults",),
    ("errors", "v1", "versions"),
)
STRANGERS = ("rpc", "graph")  # packages that do not know each other
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

LONG_FILE = 300  # lines; a habit: what is longer often holds two ideas
CROWDED_ROOM = 12  # files; a habit too


def sources(root: Path = ROOT) -> dict[str, str]:
    """Dotted module name -> text, of all of psruntime but the generated code."""
    files = sorted((root / PACKAGE).rglob("*.py"))
    named = {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    return {name: file.read_text() for name, file in named.items() if not is_in(name, GENERATED)}


def imports(text: str) -> Iterator[str]:
    """Dotted names of all that a source imports: `from a import b` counts as `a.b`, a relative import as `.`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from ("." if level else f"{module}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def is_in(name: str, package: str) -> bool:
    """Whether a dotted name is a package, or in it."""
    return name == package or name.startswith(package + ".")


def room_of(module: str) -> str:
    """`psruntime.graph.loop.async_loop` -> `graph.loop`, `psruntime.worker` -> `worker`, the package -> `psruntime`."""
    _, *parts = module.split(".")
    if not parts:
        return PACKAGE
    return ".".join(parts[:2]) if parts[0] in SPLIT else parts[0]


def arrows(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> the modules of psruntime that it imports."""
    found: dict[str, set[str]] = {}
    for module, text in texts.items():
        ours = (name for name in imports(text) if is_in(name, PACKAGE))
        found[module] = {_module(name, texts) for name in ours} - {module}
    return found


def _module(name: str, texts: Mapping[str, str]) -> str:
    """The module that an imported name is, or is in."""
    while name not in texts and "." in name and not is_in(name, GENERATED):
        name = name.rpartition(".")[0]
    return name


def complaints(found: Mapping[str, set[str]]) -> list[str]:
    """Every broken law of the rooms, a line each."""
    said = [f"{room} stands on no floor (FLOORS of tools/rooms.py)" for room in _homeless(found)]
    for module, imported in found.items():
        for name in sorted(imported):
            above, below = room_of(module), room_of(name)
            if above != below and above in FLOOR_OF and below in FLOOR_OF:
                said += [f"{module} imports {name}, {why}" for why in _faults(above, below)]
    return said + [f"a circle: {' -> '.join(circle)}" for circle in circles(found)]


def _homeless(found: Mapping[str, set[str]]) -> list[str]:
    packages = {PACKAGE + "." + name for name in SPLIT}  # their own __init__ is no room
    return sorted({room_of(module) for module in found if module not in packages} - FLOOR_OF.keys())


def _faults(above: str, below: str) -> Iterator[str]:
    if {above.partition(".")[0], below.partition(".")[0]} == set(STRANGERS):
        yield f"but {' and '.join(STRANGERS)} do not know each other"
    elif FLOOR_OF[above] >= FLOOR_OF[below]:
        yield f"which goes {'up' if FLOOR_OF[above] > FLOOR_OF[below] else 'sideways'} from {above} to {below}"


def circles(found: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that import each other in a circle, one list for each that a walk runs into."""
    done: set[str] = set()
    met: list[list[str]] = []

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            met.append([*path[path.index(module) :], module])
        elif module not in done:
            for name in sorted(found.get(module, ())):
                walk(name, [*path, module])
            done.add(module)

    for module in sorted(found):
        walk(module, [])
    return met


def habits(texts: Mapping[str, str]) -> list[str]:
    """Long files and crowded rooms."""
    said = []
    sizes: dict[str, int] = defaultdict(int)
    for module, text in texts.items():
        sizes[room_of(module)] += 1
        if (lines := len(text.splitlines())) > LONG_FILE:
            said.append(f"{module} has {lines} lines, more than {LONG_FILE}")
    return said + [f"{room} has {files} files, more than {CROWDED_ROOM}" for room, files in sizes.items()
                   if files > CROWDED_ROOM]  # fmt: skip


def picture(texts: Mapping[str, str], found: Mapping[str, set[str]]) -> str:
    """The rooms from top to bottom: number of files and lines, and the rooms that each one imports."""
    lines = []
    for floor in FLOORS:
        for room in floor:
            modules = [module for module in texts if room_of(module) == room]
            below = {room_of(name) for module in modules for name in found[module]} - {room}
            size = f"{len(modules):3} files {sum(len(texts[m].splitlines()) for m in modules):5} lines"
            arrow = f"  -> {' '.join(sorted(below, key=lambda r: (FLOOR_OF.get(r, -1), r)))}" if below else ""
            lines.append(f"{room:17} {size}{arrow}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tools.rooms", description="The rooms of psruntime and their arrows.")
    parser.add_argument("--check", action="store_true", help="leave out the picture")
    only_check = parser.parse_args().check
    texts = sources()
    found = arrows(texts)
    broken = complaints(found)
    if not only_check:
        print(picture(texts, found))
    for habit in habits(texts):
        print(f"warning: {habit}")
    for complaint in broken:
        print(f"error: {complaint}")
    total = sum(len(names) for names in found.values())
    print(f"{len(FLOOR_OF)} rooms, {len(texts)} modules, {total} imports: "
          + (f"{len(broken)} errors" if broken else "no arrow goes up, no circle"))  # fmt: skip
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
