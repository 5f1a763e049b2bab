"""When a checkpoint is due: by global steps, and after a time if there were steps since the latest.  Pure."""

from __future__ import annotations

import math

FAILED_S = 5.0  # after a failure, until a checkpoint that the control plane wants is tried again


class SaveSchedule:
    """The checkpoints that were tried, and when the next one is due.  Times are of one monotonic clock, in seconds.

    whole_every, delta_every: global steps between two whole ones, and until a delta; 0: no deltas.
    save_secs: until one is due if there were steps.  A delta serves it, if there are deltas.

    Law: after a failure by steps the next is due a tenth of those steps later.
    """

    def __init__(self, whole_every: int, delta_every: int, save_secs: float, now_s: float) -> None:
        self._whole_every, self._delta_every, self._save_secs = whole_every, delta_every, save_secs
        self._saved_at = 0  # global step of the latest
        self._whole_at = 0  # of the latest that was no delta
        self._before = (0, 0)  # both, before the latest that was tried
        self._tried_at = 0  # when that was
        self._again_at: int | None = None  # when the next is due, after one that failed
        self._tried_s = now_s
        self._failed_s = -math.inf  # when the latest failure was

    def entered(self, global_step: int, newest: int | None, newest_whole: int | None) -> None:
        """A session begins at a global step.  newest, newest_whole: of the checkpoints in the folder.

        The next one is due as if the sessions were one, so that short sessions do not delay checkpoints.
        """
        self._again_at = None
        self._saved_at = global_step if newest is None or newest > global_step else newest
        self._whole_at = global_step if newest_whole is None or newest_whole > global_step else newest_whole

    def is_whole_due(self, global_step: int) -> bool:
        """Whether there were as many steps as between two whole ones."""
        return global_step - self._whole_at >= self._whole_every

    def is_due(self, global_step: int, is_wanted: bool, now_s: float) -> bool:
        """Whether a checkpoint is due, whole or a delta.  is_wanted: by the control plane."""
        trained = global_step - self._saved_at
        soon = (is_wanted and now_s - self._failed_s >= FAILED_S) or now_s - self._tried_s >= self._save_secs
        if self._again_at is not None:
            by_steps = global_step >= self._again_at
        else:
            by_steps = self.is_whole_due(global_step) or 0 < self._delta_every <= trained
        return by_steps or (trained > 0 and soon)

    def tried(self, global_step: int, now_s: float) -> bool:
        """A checkpoint is made at this step; returns whether it is a whole one."""
        is_whole = self.is_whole_due(global_step)
        self._before = self._saved_at, self._whole_at
        self._tried_at, self._tried_s, self._again_at = global_step, now_s, None
        self.copied(global_step, is_whole)
        return is_whole

    def copied(self, global_step: int, is_whole: bool) -> None:
        """The variables of this step are copied."""
        self._saved_at = global_step
        self._whole_at = global_step if is_whole else self._whole_at

    def failed(self, is_whole: bool, now_s: float) -> None:
        """The checkpoint that was tried last is not written."""
        self._failed_s = now_s
        self._saved_at, self._whole_at = self._before
        steps = self._delta_every if self._delta_every and not is_whole else self._whole_every
        self._again_at = self._tried_at + max(1, steps // 10)
