"""Text files with an example a line, for the recommenders: checked, partly held out, shared by the workers.

`--data-dir` is one such file or a folder with them; without it the lines are generated.  A worker's share is every n-th
block of BLOCK lines, n being the number of workers that the job starts with; a worker that joins later has the share
of one of these.  Each worker reads all files and parses its share.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime import Context
from psruntime.errors import UsageError

BLOCK = 100  # lines that are parsed at once
SHUFFLED = 10_000  # examples among which the next one is drawn


@dataclass(frozen=True)
class LineFormat:
    """A format of files.

    names: patterns of their names; the first is a name.  line: RE2 that matches all of a line.  meaning: the same in
    words.  generated: returns lines, the same at each call.
    """

    names: tuple[str, ...]
    line: str
    meaning: str
    generated: Callable[[], Iterable[str]]

    def batches(self, context: Context, parse: Callable[[Any], Any], held_out: int = 10) -> tf1.data.Dataset:
        """Batches of `parse(lines)`, lines [n] string: any structure of tensors with one leading dimension.

        One line in `held_out` of each file is for the evaluation, and the others are for the training.

        Raises:
            UsageError: there is no such file.
        """
        files = self.files(context.data_dir) if context.data_dir else [_in_memory(self)]
        blocks = tf1.data.Dataset.from_tensor_slices(files).flat_map(_blocks)
        if context.mode == "train":
            blocks = blocks.shard(context.num_workers, context.worker_index % context.num_workers)

        def examples(file: Any, numbers: Any, lines: Any) -> Any:
            wanted = tf1.equal(tf1.equal(numbers % held_out, 0), context.mode == "eval")
            return parse(self._checked(file, tf1.boolean_mask(numbers, wanted), tf1.boolean_mask(lines, wanted)))

        dataset = blocks.map(examples).unbatch()
        if context.mode == "train":
            dataset = dataset.shuffle(SHUFFLED, seed=context.seed)
        return dataset.batch(context.batch_size).prefetch(2)

    def files(self, data_dir: str) -> list[str]:
        """The paths, sorted by name.

        Raises:
            UsageError: there are none.
        """
        if tf1.gfile.Exists(data_dir) and not tf1.gfile.IsDirectory(data_dir):
            return [data_dir]
        folder = re.sub(r"([*?\[\\])", r"\\\1", data_dir)  # its name is no pattern
        found = sorted({file for name in self.names for file in tf1.gfile.Glob(f"{folder}/{name}")})
        if not found:
            names = " or ".join(self.names)
            raise UsageError(f"{data_dir} has no file {names}; --data-dir must be such a file, or a folder with them")
        return found

    def write_generated(self, path: str) -> None:
        with tf1.gfile.GFile(path, "w") as file:
            file.write("".join(f"{line}\n" for line in self.generated()))

    def main(self) -> None:
        """Writes the generated file, at the path that the command line names, or under its own name."""
        self.write_generated((*sys.argv[1:], self.names[0])[0])

    def _checked(self, file: Any, numbers: Any, lines: Any) -> Any:
        """The lines, which fail where one is not of this format."""
        good = tf1.strings.regex_full_match(lines, self.line)
        bad = tf1.boolean_mask(tf1.as_string(numbers), tf1.logical_not(good))[:1]
        what = file + " line " + tf1.strings.reduce_join(bad) + f" is not {self.meaning}"
        with tf1.control_dependencies([tf1.Assert(tf1.reduce_all(good), [what])]):
            return tf1.identity(lines)


@cache
def _in_memory(of: LineFormat) -> str:
    """The path of the generated file in this process's memory: TensorFlow reads ram:// as it reads a disk."""
    path = f"ram://psruntime/{of.names[0]}"
    of.write_generated(path)
    return path


def _blocks(file: Any) -> tf1.data.Dataset:
    """(file, numbers int64 [n] from 1, lines string [n]) of up to BLOCK lines each."""
    compression = tf1.where(tf1.strings.regex_full_match(file, r".*\.gz"), "GZIP", "")
    blocks = tf1.data.TextLineDataset(file, compression).batch(BLOCK).enumerate()

    def numbered(block: Any, lines: Any) -> Any:
        return file, 1 + block * BLOCK + tf1.range(tf1.size(lines, out_type=tf1.int64)), lines

    return blocks.map(numbered)
