"""Options of the information analysis."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tp_transformer.errors import SettingsError
from tp_transformer.interpret.core.options import AnalysisOptions

if TYPE_CHECKING:
    from tp_transformer.model.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class InformationOptions(AnalysisOptions):
    """Reconstruct hidden states from the value vector of each head.

    Attributes:
        against: the folder of a second model, which is plotted beside the first
        samples: the number of samples in the paper's protocol
    """

    against: Path | None = None
    samples: int = 100

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if the model has no such layer, or there are too few samples."""
        super().check(config)
        if self.samples < 3:
            raise SettingsError(
                f"the paper's protocol needs at least 3 samples, not {self.samples}"
            )
