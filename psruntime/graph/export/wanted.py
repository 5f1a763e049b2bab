"""What a user asks an export for; no TensorFlow is needed to say it."""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.errors import UsageError

FLOAT16, INT8 = QUANTIZED = ("float16", "int8")


@dataclass(frozen=True)
class Wanted:
    """What to write beside the plain SavedModel.

    tflite: a LiteRT model too.  quantize: "", or one of QUANTIZED: that too with weights of so few bits.  prune: the
    fraction of the entries of each kernel that become zero; None: none does.  report: measure what was written.

    Raises:
        UsageError: they do not fit each other.
    """

    tflite: bool = False
    quantize: str = ""
    prune: float | None = None
    report: bool = False

    def __post_init__(self) -> None:
        if self.quantize and not self.tflite:
            raise UsageError(f"--quantize {self.quantize} is for --tflite; give that too")

    @property
    def reports(self) -> bool:
        """Whatever changes a model says how much."""
        return self.report or self.tflite or self.prune is not None
