"""`psruntime compare` as a user runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.mark.timeout(400)
def test_modes_run_one_after_the_other_and_are_drawn_into_one_page(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    flags = ["--modes=async --staleness-lr inverse; bounded 1; sync", "--workers=3", "--slow=2:8x", "--train-steps=240"]
    done = subprocess.run(
        [sys.executable, "-m", "psruntime", "compare", *flags, f"--out={tmp_path}/new/page.html"],
        capture_output=True, text=True, cwd=ROOT, timeout=380,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(
        r"^(.+): global steps (\d+), .* mean staleness (\S+), held-out loss \S+, held-out acc", done.stdout, re.M
    )
    assert [name for name, _, _ in told] == ["async --staleness-lr inverse", "bounded 1", "sync"]
    steps, staleness = [int(n) for _, n, _ in told], [float(s) for _, _, s in told]
    assert 240 <= steps[0] <= 242 and 240 <= steps[1] <= 242 and steps[2] == 80
    assert staleness[0] > 0 and staleness[2] == 0
    page = (tmp_path / "new" / "page.html").read_text()
    assert page.count("<h2>") == 5
    waited = shares_of_waiting(page)
    assert waited["bounded 1"][0] > 2 * waited["bounded 1"][2], "the fast ones wait for the slow one"
    assert max(waited["async --staleness-lr inverse"]) < 0.05


def shares_of_waiting(page: str) -> dict[str, list[float]]:
    """Mode -> share of each worker, from the data of the charts."""
    (data,) = re.findall(r"const docs_json = '(.+?)';", page)
    text = data.encode().decode("unicode_escape")
    found: dict[str, list[float]] = {}

    def look(node: object) -> None:
        if isinstance(node, dict):
            entries = node.get("entries")
            if isinstance(entries, list):
                pairs = {e[0]: e[1] for e in entries if isinstance(e, list) and len(e) == 2 and isinstance(e[0], str)}
                if pairs.get("group", [""])[0] == "worker 0":
                    found[pairs["mode"][0]] = pairs["value"]
            for each in node.values():
                look(each)
        elif isinstance(node, list):
            for each in node:
                look(each)

    look(json.loads(text))
    return found
