"""What an error of TensorFlow says, in one line."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.faults import first_line

HEAD = "Graph execution error:\n\n"
MADE = "Detected at node 'a' defined at (most recent call last):\n    File \"x.py\", line 8\nNode: 'a'\n"
END = "\n\t [[{{node a}}]]"
MESSAGES = {
    "Matrix size-incompatible": f"{HEAD}{MADE}Matrix size-incompatible{END}",
    "/x; No such file": f"{HEAD}{MADE}From /job:ps/replica:0/task:1:\n/x; No such file{END}",
    "the reason": f"{HEAD}{MADE}{MADE}=====\nNOT_FOUND: From /job:worker/replica:0/task:0:\nthe reason{END}\n=====",
    "a ps was lost": "a ps was lost",
    "UnavailableError": "",
}


@pytest.mark.parametrize("said", MESSAGES)
def test_the_reason_is_found(said: str) -> None:
    assert first_line(tf1.errors.UnavailableError(None, None, MESSAGES[said])) == said
