"""Whether a process that ended is started again, and how long after.  Pure: the caller has the processes and the clock.

Law: a process that exits with a code about the job is never started again: 0 done, 1 failed, 2 set up wrongly.
Law: a process is started again at most `limit` times.
"""

from __future__ import annotations

from psruntime.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0  # well below the times for which the others wait: --ps-timeout 300 s, --connect-timeout 60 s
STEADY_S = 60.0  # a run as long as this was no failed start: the pauses start from the shortest again


def crashed(code: int) -> bool:
    """Whether the job can continue with this process started again.

    `code` as subprocess has it, negative for a signal; so every code but the three that are about the job.
    """
    return code not in (EXIT_DONE, EXIT_FAILED, EXIT_USAGE)


def exit_code(code: int) -> int:
    """The exit code in a shell, 128 + N for signal N, from a `code` of subprocess.

    A parent that ends because of a child's end exits with this code.
    """
    return code if code >= 0 else 128 - code


class Backoff:
    """The restarts of one process.

    Invariant: restarts <= limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.restarts = 0
        self._pause_s = FIRST_PAUSE_S

    def pause_s(self, lived_s: float) -> float | None:
        """The pause after a crash of the process, which ran for `lived_s`; None if it is not started again."""
        if self.restarts == self.limit:
            return None
        self.restarts += 1
        pause_s = FIRST_PAUSE_S if lived_s >= STEADY_S else self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s
