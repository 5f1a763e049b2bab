"""The rule of --staleness-lr: by how much the learning rate of an update is lowered, by the staleness of that update.

Staleness is counted in versions: how many other updates the bucket has taken between the pull and this one.  One worker
alone has 0; with W workers of the same pace, of P steps under way each (--pipeline), it is W x P - 1 on the average.

    inverse             weight = 1 / staleness if staleness > 0, else 1
    exponential:RATE    weight = exp(-RATE x staleness)

An update is made with weight x learning rate.  The first is the rule of Zhang, Gupta, Lian and Liu, Staleness-aware
Async-SGD for distributed deep learning, IJCAI 2016 (alpha / tau if tau > 0, else alpha), where tau counts as staleness
does here; so an update that is one version late keeps its rate, and with 2 workers of the same pace hardly one is
lowered.  The second lowers from the first version on.

Delay compensation (Zheng et al., ICML 2017) is not built: it needs the parameters that a worker had pulled, a model of
each worker on the ps or twice the bytes of a push.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from psruntime.errors import UsageError

INVERSE, EXPONENTIAL = "inverse", "exponential"
FORMS = f"{INVERSE} or {EXPONENTIAL}:RATE"


@dataclass(frozen=True)
class StalenessLr:
    """decay: RATE, per version; None: the rule is `inverse`."""

    decay: float | None = None

    @classmethod
    def of(cls, text: str) -> StalenessLr | None:
        """The rule in `text`; None if it is empty.

        Raises:
            UsageError: it is no rule.
        """
        if not text:
            return None
        name, colon, rate = text.partition(":")
        if name == INVERSE and not colon:
            return cls()
        if name != EXPONENTIAL or not colon:
            raise UsageError(f"staleness_lr must be {FORMS}, got '{text}'")
        try:
            decay = float(rate)
        except ValueError:
            decay = math.nan
        if not 0 < decay < math.inf:
            raise UsageError(f"staleness_lr {EXPONENTIAL}:RATE needs a number above 0, per version, got '{rate}'")
        return cls(decay)

    def weight(self, staleness: int) -> float:
        """What the learning rate is multiplied by, from 0 to 1."""
        if self.decay is None:
            return 1.0 / max(staleness, 1)
        return math.exp(-self.decay * max(staleness, 0))
