"""What a checkpoint that holds only the rows that were touched says of them: which tables they are of, and where.

Touched rows of a bucket are saved in portions, one after the other: for each a tensor of the rows, as they are numbered
in the bucket, and one of each variable that has them.  Those of a table are one range.  It is a file of JSON with the
checkpoint's name and the ending SUFFIX.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate

SUFFIX = ".rows.json"


@dataclass(frozen=True)
class TableRange:
    """The touched rows [begin, end) are of table `name`; of a dynamic table there may be none.

    Row `offset` of the bucket is row `start` of the table, the next one row `start + stride`.
    """

    name: str
    begin: int
    end: int
    start: int
    offset: int
    stride: int


@dataclass(frozen=True)
class TouchedPart:
    """The touched rows of some variables of a bucket.

    kind: which variables of a bucket these are.  prefix: of the names of their tensors.  portions: rows in each.
    elapsed: what the bucket's clock has counted since all rows were saved.
    """

    kind: str
    prefix: str
    portions: tuple[int, ...]
    elapsed: int
    tables: tuple[TableRange, ...]

    def by_portion(self) -> Iterator[list[tuple[int, TableRange]]]:
        """For each portion (first row in it, table) of the tables that have rows there, in their order."""
        begin = 0
        for end in accumulate(self.portions):
            yield [(max(t.begin, begin) - begin, t) for t in self.tables if max(t.begin, begin) < min(t.end, end)]
            begin = end


@dataclass(frozen=True)
class RowChanges:
    """All rows that were touched since the copy of this stamp, which was saved whole."""

    since: int
    parts: tuple[TouchedPart, ...]

    @property
    def rows(self) -> int:
        """How many, in all variables that are kept together."""
        return sum(sum(part.portions) for part in self.parts)

    def heights(self, name: str) -> dict[str, int]:
        """Rows of each tensor of this name, by its whole name."""
        return {
            f"{part.prefix}/{number}/{name}": rows for part in self.parts for number, rows in enumerate(part.portions)
        }

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def of_text(cls, text: str) -> RowChanges:
        """Raises ValueError: the text is not one of `text`."""
        try:
            data = json.loads(text)
            return cls(
                int(data["since"]),
                tuple(
                    TouchedPart(
                        str(part["kind"]),
                        str(part["prefix"]),
                        tuple(int(rows) for rows in part["portions"]),
                        int(part["elapsed"]),
                        tuple(TableRange(**table) for table in part["tables"]),
                    )
                    for part in data["parts"]
                ),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it lacks or has another {error}") from error
