"""What is written for which column, which label, and which form of a file; and what is refused, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from psruntime import cli
from psruntime.own_data.columns import BINARY, CLASSES, HASHED, LEFT_OUT, NUMBERS, WORDS, column_of, guess, label_of
from psruntime.own_data.model_text import model_text
from psruntime.own_data.table import has_header, names_of, read_table
from tests.own_data.tables import TABLES, write

N = range(100)
COLUMNS: dict[str, tuple[str, list[str], str, str]] = {  # name of the case -> name, fields, kind, and what it says
    "numbers": ("area", [f"{n % 37}.5" for n in N], NUMBERS, "(16.5, 11.851851851851851)"),
    "numbers of either sign": ("x", [f"{n - 50}e-2" for n in range(0, 200, 2)], NUMBERS, "False"),
    "whole numbers": ("rooms", [str(n % 5) for n in N], NUMBERS, "False"),
    "numbers, some empty": ("area", ["" if n % 9 == 0 else str(n * n) for n in N], NUMBERS, "('',)"),
    "numbers, some unknown": ("area", ["NA" if n % 9 == 0 else str(n * n) for n in N], NUMBERS, "('NA',)"),
    "numbers with a comma": ("area", [f"{n},5" for n in N[::-1]], NUMBERS, "True"),
    "numbers with a unit": ("price", [f"$ {n % 7}.50" for n in N], NUMBERS, "True"),
    "numbers with thousands": ("price", [f"{n},{n:03}.5" for n in range(1, 100)], NUMBERS, ","),
    "numbers with German thousands": ("price", [f"{n}.{n:03},5 €" for n in range(1, 100)], NUMBERS, r"[\s\xa0]|\.|€"),
    "numbers with a wide space": ("x", [f"{n % 7}\xa0" for n in N], NUMBERS, r"[\s\xa0]"),
    "numbers with a narrow space": ("x", [f"1\u202f{n % 7:03}" for n in N], NUMBERS, "[\\s\\xa0\u202f]"),
    "numbers with a unit in letters": ("mass", [f"{n % 7} kg" for n in N], NUMBERS, r"[\s\xa0]|kg"),
    "numbers, some otherwise unknown": ("area", ["n.d." if n % 9 == 0 else f"{n}.5" for n in N], NUMBERS, "('n.d.',)"),
    "numbers, some infinite": ("area", ["inf" if n % 9 == 0 else f"{n}.5" for n in N], NUMBERS, "('inf',)"),
    "numbers, some beyond": ("area", ["1e400" if n % 9 == 0 else f"{n}.5" for n in N], NUMBERS, "('1e400',)"),
    "numbers, some a mark for none": ("x", ["-999" if n % 5 == 0 else str(n % 9) for n in N], NUMBERS, "False"),
    "sizes": ("size", ["40" if n % 2 else "SML"[n % 3] for n in N], WORDS, "('40', 'L', 'M', 'S')"),
    "codes": ("area_code", ["0131" if n % 2 else "1310" for n in N], WORDS, "('0131', '1310')"),
    "zip codes": ("zip", [str(10000 + n % 60) for n in N], HASHED, "128"),
    "words": ("town", [("Rome", "Oslo", "Bonn")[n % 3] for n in N], WORDS, "('Bonn', 'Oslo', 'Rome')"),
    "words, some rare": ("town", ["Rome" if n > 1 else f"x{n}" for n in N], WORDS, "('Rome',)"),
    "words, some empty": ("town", ["" if n % 2 else "Rome" for n in N], WORDS, "('Rome',)"),
    "many words": ("town", [f"town {n % 60}" for n in N], HASHED, "128"),
    "numbers that name a thing": ("user_id", [str(n % 60) for n in N], HASHED, "128"),
    "text of each row": ("note", [f"no two alike: {n}" for n in N], LEFT_OUT, "nearly every row has its own"),
    "row numbers": ("n", [str(n + 1) for n in N], LEFT_OUT, "nearly every row has its own"),
    "a key": ("id", [str(n * 7919 % 1000) for n in N], LEFT_OUT, "nearly every row has its own"),
    "one value": ("currency", ["EUR"] * 100, LEFT_OUT, "always the same"),
    "nothing": ("spare", [""] * 100, LEFT_OUT, "always empty"),
    "dates": ("day", [f"2024-02-{n % 28 + 1:02}" for n in N], LEFT_OUT, "dates"),
    "other dates": ("day", [f"{n % 28 + 1}.2.2024 10:30" for n in N], LEFT_OUT, "dates"),
    "times": ("at", [f"{n % 24}:05:00" for n in N], LEFT_OUT, "dates"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_what_a_column_is(case: str) -> None:
    name, fields, kind, says = COLUMNS[case]
    column = column_of(name, fields)
    assert column.kind == kind
    assert says in (str(each) for each in vars(column).values())


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        (["yes", "no", "no"], BINARY, ("yes",)),
        (["no", "yes", "yes"], BINARY, ("yes",)),
        (["0", "1", "1"], BINARY, ("1",)),
        (["2", "1", "1"], BINARY, ("2",)),
        (["good", "bad", "good", ""], BINARY, ("bad",)),
        (["mild", "none", "severe", "none", ""] * 2, CLASSES, ("mild", "none", "severe")),
        (["$1,000.50", "$2,000", "$3,000.25"], NUMBERS, ()),
        (["1", "2", "3"], NUMBERS, ()),
        (["a", "b", "c"] * 2, CLASSES, ("a", "b", "c")),
        (["3", "1", "2"] * 2, CLASSES, ("1", "2", "3")),
        (["0.5", "1.5", "2"], NUMBERS, ()),
        ([str(n) for n in range(30)], NUMBERS, ()),
    ],
)
def test_what_a_label_is(fields: list[str], kind: str, words: tuple[str, ...]) -> None:
    label = label_of(column_of("label", fields), fields)
    assert (label.kind, label.words, label.column.name) == (kind, words, "label")


@pytest.mark.parametrize(
    ("records", "header"),
    [
        (["a,b", "1,2", "3,4"], True),
        (["1,2", "3,4"], False),
        (["a,b", "a,c", "b,c"], False),
        (["name,town", "Ann,Rome", "Bob,Oslo"], True),
        ([",b", "0,1", "1,2"], True),
        (["x,x", "1,2"], True),
        (["x,x", "a,b"], False),
        (["id,2019,2020,", "1,5,6,", "2,7,8,"], True),
        (["NA,?,a", "1,2,b"], False),
        (["a,b"], False),
    ],
)
def test_whether_a_file_has_a_header(records: list[str], header: bool) -> None:
    assert has_header([record.split(",") for record in records]) == header


def test_names_are_identifiers_and_each_is_another() -> None:
    assert names_of(["Unit price (€)", "unit-price", "", "2nd", "id"]) == (
        "unit_price", "unit_price_2", "column_3", "column_2nd", "id",
    )  # fmt: skip
    assert names_of(["a_3", "a", "a", "Größe", "PassengerId", "数", "x" * 60]) == (
        "a_3", "a", "a_4", "grosse", "passenger_id", "column_6", "x" * 40,
    )  # fmt: skip


def test_the_label_is_one_with_a_usual_name_or_the_last_that_can_be_one_or_as_it_is_said(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    lines = [f"{n % 2},{n % 3},{n % 5}.5,2024-01-01" for n in N]
    for header, label, found in (
        ("a,b,c,day", "", "c"), ("a,target,c,day", "", "target"), ("a,b,c,day", "b", "b"), ("a,b,c,day", "1", "a"),
        ("A col,b,c,day", "A col", "a_col"),
    ):  # fmt: skip
        file.write_text("\n".join([header, *lines]))
        assert guess(read_table([file]), label).label.column.name == found


REFUSED = {  # what is said -> the text of the file
    "has one column; columns are cut by a comma": "a\n1\n2\n",
    "a.csv is empty": "",
    "a.csv, line 4: 3 fields, where the first record has 2; correct it": 'a,b\n"1\n",2\n1,2,3\n',
    "a.csv, line 3: the line is empty; correct it": "a,b\n1,2\n\n3,4\n",
    "a.csv, line 1: the line is empty; a file begins with a header or a record": "\na,b\n1,2\n",
    "a.csv, line 2: column 1 has a quote within a field that is not quoted": 'a,b\n5" pipe,2\n3,4\n',
    "a.csv, line 3: column 2 has a quote": 'a,b\n1,"5"\n2,"r"ed\n3,4\n',
    "a.csv, line 2: column 2 has a quote": 'a,b\n1, "5"\n2,3\n',
    "a.csv, lines 2 to 4: column 2 has a quote": 'a,b\n1,"5\n2,6\n3,4\n',
    "a.csv, line 4: the line is empty": "a,b\n1,2\n3,4\n  \n",
    "a.csv, line 1: 1 field, where most records have 2; a file begins with": "# of May\na,b\n1,2\n3,4\n",
    "a.csv, line 1: 1 field, where most records have 3": "Report of May,,\na,b,c\n1,2,3\n",
    "a.csv, line 2: a NUL character": "a,b\n1,\0\n",
    "a.csv is JSON": '{"a": 1}\n',
    "a.csv is HTML": "<!DOCTYPE html>\n",
    "a.csv has 9 records; at least 20 are needed": "a,b\n" + "1,2\n" * 9,
    "a.csv has its header twice, again 3 records below": "a,b\n1,2\n3,4\na,b\n" + "5,6\n" * 9,
    "column label has 100 different texts, too many": "label,a\n" + "".join(f"text {n},{n % 7}\n" for n in N),
    "nothing to predict in column y: one value, 1": "x,y\n" + "".join(f"{n},1\n" for n in N),
    "column y is yes in 3 of 100 rows; at least 5": "x,y\n" + "".join(f"{n},{'yes' if n < 3 else 'no'}\n" for n in N),
    "has no column that can be a label; name one": "a,b\n" + "x,y\n" * 20,
    "has no column from which b can be predicted": "a,b\n" + "".join(f"x,{n % 2}\n" for n in N),
    "b can be predicted: a (always the same)": "a,b\n" + "".join(f"x,{n % 2}\n" for n in N),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_file_that_cannot_be_a_table_is_refused_with_its_line(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(REFUSED[said])
    assert cli.main(["init", "model", "--from", "a.csv"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("psruntime init: ") and said in err and err.count("\n") == 1
    assert not Path("model.py").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--from", "gone.csv"], "gone.csv cannot be read: No such file or directory"),
        (["--from", "latin.csv"], "latin.csv, line 2: character 4 is not in UTF-8; convert"),
        (["--from", "a.csv", "other.csv"], "other.csv, line 1: column 2 is 'c', and 'b' in a.csv; all files need"),
        (["--from", "a.csv", "--label", "bb"], "--label: a.csv has no column bb; "),
        (["--from", "a.csv", "--label", "text"], "--label: a.csv has no column text; the columns are a, b"),
        (["--from", "a.csv", "./a.csv"], "a.csv is named twice"),
        (["--from", "a.csv", "empty.csv"], "empty.csv is empty; leave it out"),
        (["--from", "packed.csv"], "packed.csv is compressed; unpack it with gunzip"),
        (["--from", "wide.csv"], "wide.csv is in UTF-16; convert it with iconv"),
        (["--from", "."], ". cannot be read: Is a directory; name the files in it: ./*.csv"),
        (["--from", "twins.csv", "--label", "a"], "--label: twins.csv has 2 columns a; give the number of one: 1 or 3"),
        (["--label", "b"], "--label is of the files of --from, which is missing"),
        (["--from", "gs://bucket/a.csv"], "argument --from: gs://bucket/a.csv is not in a file system"),
    ],
)
def test_a_wrong_use_is_one_line(
    argv: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("a,b\n" + "".join(f"{n},{n % 2}\n" for n in N))
    Path("other.csv").write_text("a,c\n1,2\n")
    Path("empty.csv").write_text("")
    Path("packed.csv").write_bytes(b"\x1f\x8b\x08")
    Path("wide.csv").write_bytes("a,b\n1,2\n".encode("utf-16"))
    Path("twins.csv").write_text("a,b,a\n" + "".join(f"{n},{n % 2},{n}\n" for n in N))
    Path("latin.csv").write_bytes("a,b\ncafé,1\n".encode("latin-1"))
    try:
        code = cli.main(["init", "model", *argv])
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and err.startswith(f"psruntime init: {said}") and err.count("\n") == 1
    assert not Path("model.py").exists()


@pytest.mark.parametrize("name", TABLES)
def test_the_model_is_python_that_says_what_it_leaves_out(name: str, tmp_path: Path) -> None:
    files, label = write(name, tmp_path)
    table = read_table(files)
    text = model_text(name, table, guess(table, label), tmp_path)
    compile(text, name, "exec")
    assert max(map(len, text.splitlines())) <= 120
    assert f"header={TABLES[name][1] is not None}" in text and f'"{files[-1].name}"' in text
    for said in {
        "loans": ['"day": "",  # left out: dates', 'POSITIVE = "yes"', '"auc": tf.metrics.auc('],
        "plants": ['CLASSES = ["fern", "moss", "rose"]', '"garden": 512', "field_delim='\\t'"],
        "flats": ['MAY_BE_EMPTY = ["area", "built"]', "LABEL_SCALE = (", '"rmse": tf.metrics.root'],
        "sensors": ["field_delim=';'", "def as_number(row, name):"],
        "reviews": ["reviews_0.csv", '"late,\\nand broken"', '"review_id": "",  # left out: nearly'],
    }[name]:
        assert said in text


ODD = {  # what the text has -> the file
    'tf.not_equal(row[LABEL], ["", "NA"])': "a,class\n"
    + "".join(f"{n % 37},{('x', 'y', 'z', '', 'NA')[n % 5]}\n" for n in N),
    "~tf.math.is_nan(as_number(row, LABEL))": "a;b\n"
    + "".join(f"{n % 37};{'NA' if n % 9 == 0 else f'{n},5'}\n" for n in N),
    "# late and broken 1 in 50 % of the rows": "a,b\n" + "".join(f'{n % 37},"late\nand broken {n % 2}"\n' for n in N),
    '"numbers_1": 128': "numbers,b\n" + "".join(f"t{n % 60},{n % 2}\n" for n in N),
    "rows = rows.enumerate().filter(": "a,b\n" + "".join(f"{n % 3},{n % 2}\n" for n in N),
    "inputs = []": "a,b\n" + "".join(f"t{n % 3},{n % 2}\n" for n in N),
}


@pytest.mark.parametrize("said", ODD)
def test_a_model_of_an_odd_table_is_python(said: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.csv"
    file.write_text(ODD[said])
    table = read_table([file])
    text = model_text("odd", table, guess(table, "b" if "b" in table.names else ""), tmp_path)
    compile(text, "odd", "exec")
    assert said in text
