"""launch/psruntime.nft with the addresses of a test's machines."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.docs import ROOT

RULES = ROOT / "launch" / "psruntime.nft"


def write_rules(path: Path, **defines: str) -> Path:
    """Writes the rules in which these definitions, for example members="10.9.1.2", have this value."""
    text = RULES.read_text()
    for name, value in defines.items():
        text, count = re.subn(rf"^define {name} = .*$", f"define {name} = {{ {value} }}", text, flags=re.MULTILINE)
        assert count == 1, f"{RULES.name} does not define {name}"
    path.write_text(text)
    return path
