"""python -m psruntime: the same as the command `psruntime`."""

import sys

from psruntime.cli import main

sys.exit(main())
