"""Options of the information analysis."""

from dataclasses import dataclass
from pathlib import Path

from tp_transformer.foundation.errors import SettingsError
from tp_transformer.foundation.ranges import PositiveInt
from tp_transformer.interpret.core.options import AnalysisOptions


@dataclass(frozen=True, kw_only=True)
class InformationOptions(AnalysisOptions):
    """Reconstruct hidden states from the value vector of each head.

    Attributes:
        against: the folder of a second model, which is plotted below the first
        samples: the number of samples in the paper's protocol
    """

    against: Path | None = None
    samples: PositiveInt = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 3:
            raise SettingsError(
                f"the paper's protocol needs at least 3 samples, not {self.samples}"
            )
