"""What is said of a record of a CSV file that TensorFlow cannot read: where it is, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import UserCodeError
from psruntime.graph.input.input_stream import InputStream
from psruntime.model import Context, Model

F = tf1.float32


def csv(types: list[Any], **settings: Any) -> Any:
    return lambda files: tf1.data.experimental.CsvDataset(files, types, **settings).map(lambda *fields: (fields, 0))


def decoded(**settings: Any) -> Any:
    def fields(line: Any) -> Any:
        return tuple(tf1.io.decode_csv(line, [tf1.constant([], F), tf1.constant([], F)], **settings)), 0

    return lambda files: tf1.data.TextLineDataset(files).skip(1).map(fields)


DEFAULT = "give the column a default in COLUMNS, as [0.0] in place of tf.float32"
OTHER = "correct the record, or read the column as tf.string in COLUMNS"
CASES = {  # name -> the data, the text of the last of two files, what is said
    "empty": (csv([F, F], header=True), "x,y\n1,2\n3,4\n5,\n", f"empty in column 2 (y), line 4 of FILE: {DEFAULT}"),
    "of another type": (csv([F, F]), '"1\n",2\nsix,3\n', f"it is in column 1, line 3 of FILE: {OTHER}"),
    "some columns": (
        csv([F, F], field_delim=";", na_value="NA", select_cols=[0, 2]), "1;;2\n3;;NA\n",
        f"the field is empty in column 2, line 2 of FILE: {DEFAULT}",
    ),
    "fields": (csv([F, F]), '1,"2"\n3\n', "such a record is line 2 of FILE; every record needs 2 fields"),
    "a stray quote": (
        csv([F, tf1.string], header=True), 'x,y\n1,"a\nb"\n2,5" pipe\n',
        'a quote within a field as "5"" pipe"; the first such record is in FILE, line 4, column 2',
    ),
    "text after a quote": (csv([F, tf1.string]), '1,"a"\n2,"a"b\n', "in FILE, line 2, column 2"),
    "an open quote": (csv([F, tf1.string]), '1,"a"\n2,"b\n3,c\n', "in FILE, line 2, column 2"),
    "decode_csv, a stray quote": (decoded(), 'x,y\n1,2\n3,4"\n', "in FILE, line 3, column 2"),
    "decode_csv": (
        decoded(field_delim="\t"), "x\ty\n1\t2\n3\t\n", f"the field is empty in column 2, line 3 of FILE: {DEFAULT}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_record_is_named_by_its_file_its_line_and_its_column(case: str, tmp_path: Path) -> None:
    data, text, said = CASES[case]
    first, file = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text("x,y,z\n"[: 0 if "x" not in text else None])
    file.write_text(text)
    model = Model("m", lambda _: data([str(file)]).batch(1), lambda *_: None)  # type: ignore[arg-type, return-value]
    inputs = InputStream(model, Context("eval", 0, 1, 1, "", 0))
    with pytest.raises(UserCodeError) as caught:
        while inputs.draw() is not None:
            pass
    assert said.replace("FILE", str(file)) in str(caught.value)
    assert "\n" not in str(caught.value)
