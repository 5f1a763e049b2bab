"""Shows the dynamic tables of a job's newest checkpoint, and exports their embeddings.

psruntime tables --checkpoint-dir FOLDER [--table NAME] [--hottest N] [--export FILE] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from psruntime.core.fields import visible
from psruntime.core.members.messages import ROW_COLUMNS
from psruntime.errors import EXIT_DONE, UsageError
from psruntime.observe.render import table, text_console
from psruntime.process import flags
from psruntime.process.job_file import local_file
from psruntime.process.process import offline

if TYPE_CHECKING:
    from psruntime.graph.embedding.dynamic_table import StoredTable

PROG = "psruntime tables"
HOTTEST = 10
NPZ, PARQUET = ".npz", ".parquet"


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the newest checkpoint; no job need run."""
    arguments = _parser().parse_args(argv)
    return offline(PROG, lambda: _work(arguments))


def _work(arguments: argparse.Namespace) -> int:
    folder = flags.checkpoint_folder(arguments)
    if arguments.hottest < 0:
        raise UsageError(f"--hottest must be from 0, got {arguments.hottest}")
    if arguments.export and not arguments.export.endswith((NPZ, PARQUET)):
        raise UsageError(f"--export must end with {NPZ} or {PARQUET}, got '{arguments.export}'")
    tables = _chosen(_newest(folder), arguments.table, folder)
    if arguments.export:
        _export(tables, arguments.export)
    _show(tables, arguments.hottest, arguments.json)
    return EXIT_DONE


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "Shows the dynamic tables (psruntime.embedding) of a job's newest checkpoint: how many ids have a row, what "
        "became of the rows of gradients, and the ids that most steps had.",
        first=("checkpoint_dir",),
    )
    flags.add_checkpoint_dir_flag(parser)
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument("--table", default="", metavar="NAME", help="only this one")
    most_used.add_argument(
        "--hottest",
        type=flags.whole_number,
        default=HOTTEST,
        metavar="N",
        help=f"how many ids to show of each (default: {HOTTEST})",
    )
    most_used.add_argument(
        "--export", default="", type=local_file, metavar="FILE",
        help=f"write ids and embeddings of one table; FILE ends with {NPZ}, or with {PARQUET}, which needs pyarrow",
    )  # fmt: skip
    most_used.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _newest(folder: str) -> list[StoredTable]:
    """TensorFlow is imported here only, after its environment is set."""
    from psruntime.graph.base import environment

    environment.prepare(hide_gpus=True)

    from psruntime.graph.checkpoint.listing import CheckpointList
    from psruntime.graph.embedding.dynamic_table import stored_tables

    checkpoints = CheckpointList(folder)
    newest = checkpoints.require_newest()
    if missing := checkpoints.not_in(newest):
        sys.stderr.write(f"{PROG}: {missing}\n")
    return stored_tables(newest)


def _chosen(tables: list[StoredTable], name: str, folder: str) -> list[StoredTable]:
    if not tables:
        raise UsageError(f"the newest checkpoint in {folder} has no dynamic table")
    names = [each.name for each in tables]
    if name and name not in names:
        raise UsageError(f"there is no dynamic table {name}; there are {', '.join(names)} (--table)")
    return [each for each in tables if name in ("", each.name)]


def _export(tables: list[StoredTable], path: str) -> None:
    if len(tables) > 1:
        raise UsageError(
            f"--export is of one table: choose one of {', '.join(each.name for each in tables)} by --table"
        )
    (chosen,) = tables
    try:
        if path.endswith(NPZ):
            import numpy as np

            with open(path, "wb") as file:
                np.savez(file, ids=chosen.ids, vectors=chosen.vectors)
        else:
            _write_parquet(chosen, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def _write_parquet(chosen: StoredTable, path: str) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(f"{PARQUET} needs pyarrow: pip install pyarrow, or export to {NPZ}") from error
    vectors = chosen.vectors
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), vectors.shape[1])
    parquet.write_table(pyarrow.table({"id": chosen.ids, "vector": column}), path)


def _show(tables: list[StoredTable], hottest: int, as_json: bool) -> None:
    if as_json:
        shown = {each.name: {**asdict(each.counts), "hottest": _hottest(each, hottest)} for each in tables}
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
        return
    sizes = table("dynamic table", *ROW_COLUMNS, "hit rate")
    for each in tables:
        c = each.counts
        numbers = {**c.shown, "ids": len(each.ids)}.values()
        tried = c.found + c.admitted + c.refused
        sizes.add_row(Text(visible(each.name)), *map(str, numbers), f"{c.found / tried:.1%}" if tried else "-")
    console = text_console()
    console.print(sizes)
    for each in tables if hottest else []:
        rows = table(f"hottest of {visible(each.name)}", "steps", "idle for")
        for known in _hottest(each, hottest):
            rows.add_row(str(known["id"]), str(known["seen"]), str(known["idle"]))
        console.print("", rows)


def _hottest(each: StoredTable, count: int) -> list[dict[str, Any]]:
    """The ids in the most updates."""
    ids, seen, idle = each.ids, each.seen, each.idle
    order = (-seen).argsort(kind="stable")[:count]
    return [{"id": int(ids[i]), "seen": int(seen[i]), "idle": int(idle[i])} for i in order]
