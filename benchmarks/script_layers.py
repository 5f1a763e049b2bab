"""The script of the peer, stock_layers.py, as a worker of a job of ours: its session alone is another.

python -m benchmarks.script_layers COORDINATOR [flags of stock_layers.py]
"""

from __future__ import annotations

import sys
from functools import partial

from psruntime import MonitoredTrainingSession, tf1


def main() -> None:
    assert tf1  # psruntime imports TensorFlow before the script does
    from benchmarks import stock_layers

    coordinator, index = sys.argv.pop(1), int(sys.argv[sys.argv.index("--index") + 1])
    stock_layers.main(partial(MonitoredTrainingSession, coordinator=coordinator, index=index))


if __name__ == "__main__":
    main()
