"""Asks pip-audit's advisory data base for known vulnerabilities of all versions in constraints.txt.

    python -m tools.audit

Prints a line for each, and exits with 1 if there is one.  Exits with 2 if the data base gave no answer for a package.
Versions for other Pythons and systems are asked for, too.  Needs pip-audit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from tools.constraints import ENTRY, FILE, ROOT, name_of

COMMAND = "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner=off", "--format=json"


def lists_of(text: str) -> list[str]:
    """The entries of constraints.txt without their conditions, in lists with one version of a package in each."""
    lists: list[dict[str, str]] = []
    for entry in ENTRY.finditer(text):
        pin = re.sub(r" ;.*? \\\n", " \\\n", entry["pin"], count=1)
        free = next((each for each in lists if name_of(pin) not in each), None)
        if free is None:
            lists.append(free := {})
        free[name_of(pin)] = f"{pin}\n"
    return ["".join(each.values()) for each in lists]


def ask(pins: str) -> list[dict[str, Any]]:
    """pip-audit's answer for each package.  Raises SystemExit if it gives none."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pins)
        file.flush()
        done = subprocess.run([sys.executable, *COMMAND, "-r", file.name], capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        why = (done.stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1]
        raise no_answer(f"is not reachable: {why}")
    return list(json.loads(done.stdout)["dependencies"])


def report(answers: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each vulnerability.  Raises SystemExit if a package was skipped, which is no error for pip-audit."""
    for answer in answers:
        for found in answer.get("vulns", ()):
            fixed = f"fixed in {', '.join(found['fix_versions'])}" if found["fix_versions"] else "no version fixes it"
            yield f"{answer['name']} {answer['version']}: {found['id']}, {fixed}"
    if skipped := [answer for answer in answers if "skip_reason" in answer]:
        state = "is not reachable" if len(skipped) == len(answers) else "is not complete"
        why = f"no answer for {len(skipped)} of {len(answers)} versions ({skipped[0]['skip_reason']})"
        raise no_answer(f"{state}: {why}")


def no_answer(why: str) -> SystemExit:
    """The end of the program, with one line."""
    print(f"audit: the vulnerability data base {why}", file=sys.stderr)
    return SystemExit(2)


def main() -> int:
    answers = [answer for pins in lists_of((ROOT / FILE).read_text()) for answer in ask(pins)]
    vulnerable = False
    for line in report(answers):
        vulnerable = True
        print(line)
    print(f"audit: {len(answers)} versions, {'some' if vulnerable else 'none'} with a known vulnerability")
    return int(vulnerable)


if __name__ == "__main__":
    sys.exit(main())
