"""Exports a trained model for serving: `serving_graph` builds it, `write` writes it, `held_out` measures it.

Here is what a user asks an export for.  It imports no TensorFlow: the command line is read before that is.
"""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.errors import UsageError

FLOAT16, INT8 = QUANTIZED = ("float16", "int8")


@dataclass(frozen=True)
class Wanted:
    """The outputs to write beside the plain SavedModel.

    tflite: a LiteRT model too.  quantize: "", or one of QUANTIZED: one with quantized weights too.  prune: the
    fraction of the entries of each kernel that become zero; None: none does.  report: measure the exported models.

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
        """Whether there is a report: whenever the model is changed, too."""
        return self.report or self.tflite or self.prune is not None
