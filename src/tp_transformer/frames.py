"""Tables as pandas frames; pandas is imported when one is made."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tp_transformer.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def frame(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> "pd.DataFrame":
    """Return rows of named values as a frame, whose columns are by default those of the rows."""
    try:
        import pandas as pd
    except ImportError as error:
        message = "frames need pandas: pip install 'tp-transformer[pandas]'"
        raise UserError(message) from error
    return pd.DataFrame(list(rows), columns=None if columns is None else list(columns))
