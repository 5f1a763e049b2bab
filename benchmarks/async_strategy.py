"""Steps per second of async training: ours and ParameterServerStrategy's.  Options and output are those of async_steps.

python -m benchmarks.async_strategy [--runs 3] [--seconds 10] [--bytes 40000,1000000] [--quick] [--json]
"""

from __future__ import annotations

from benchmarks.async_steps import main

if __name__ == "__main__":
    main("strategy")
