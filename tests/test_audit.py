"""tools/audit.py: what it asks for, and what it makes of the answers.  Answers have the form of pip-audit 2.10."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.docs import ROOT
from tools.audit import lists_of, report
from tools.constraints import ENTRY, name_of

FINE: dict[str, Any] = {"name": "rich", "version": "15.0.0", "vulns": []}
SKIPPED = {"name": "keras", "skip_reason": "Dependency not found on PyPI and could not be audited: keras (3.12.4)"}
FOUND = {
    "name": "pillow",
    "version": "12.3.0",
    "vulns": [
        {"id": "PYSEC-2026-1", "fix_versions": ["12.3.1", "13.0.0"], "aliases": ["CVE-2026-1"], "description": "..."},
        {"id": "PYSEC-2026-2", "fix_versions": [], "aliases": [], "description": "..."},
    ],
}


def test_it_asks_for_every_version_also_for_those_of_other_pythons() -> None:
    text = (ROOT / "constraints.txt").read_text()
    lists = [[line.partition(" ")[0] for line in pins.splitlines() if line[0] != " "] for pins in lists_of(text)]
    assert len(lists) > 1, "keras has two versions, one for Python 3.10"
    assert all(len(set(map(name_of, pins))) == len(pins) for pins in lists)
    assert sorted(pin for pins in lists for pin in pins) == sorted(
        entry["pin"].partition(" ")[0] for entry in ENTRY.finditer(text)
    )
    assert not any(";" in pins for pins in lists_of(text))  # nothing is left out for this Python


def test_a_vulnerability_is_a_line() -> None:
    assert list(report([FINE])) == []
    assert list(report([FINE, FOUND])) == [
        "pillow 12.3.0: PYSEC-2026-1, fixed in 12.3.1, 13.0.0",
        "pillow 12.3.0: PYSEC-2026-2, no version fixes it",
    ]


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ([SKIPPED], "is not reachable: no answer for 1 of 1 versions"),
        ([FINE, SKIPPED], "is not complete: no answer for 1 of 2 versions"),
    ],
)
def test_no_answer_for_a_version_is_no_good_answer(
    answers: list[dict[str, Any]], state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip-audit calls it none with a known vulnerability."""
    with pytest.raises(SystemExit) as ended:
        list(report(answers))
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"audit: the vulnerability data base {state} ({SKIPPED['skip_reason']})\n"


def test_a_failure_of_pip_audit_is_one_line() -> None:
    """Here it is not installed."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.audit"], cwd=ROOT, env={**os.environ, "PYTHONNOUSERSITE": "1"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert (
        line.startswith("audit: the vulnerability data base is not reachable: ") and "No module named pip_audit" in line
    )
