"""Faults in a source of questions, which are errors or are skipped and counted."""

from dataclasses import dataclass, field
from typing import Any

from tp_transformer.foundation.errors import CorpusError


@dataclass
class Report:
    """Handles faults: the first one is an error, or each is skipped and counted."""

    skip: bool
    entries: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def fault(self, where: str, line: int | None, reason: str, rows: int, detail: str = "") -> None:
        """Raise for a fault, or record it and the number of `rows` of the file that it affects."""
        if not self.skip:
            at = where if line is None else f"{where}, line {line:,}"
            raise CorpusError(f"{at}: {detail or reason}")
        self.note(where, line, reason, rows)

    def note(self, where: str, line: int | None, reason: str, rows: int) -> None:
        """Record rows that were skipped, with the reason."""
        entry = {"file": where, "reason": reason, "rows": 0, "first_line": line}
        self.entries.setdefault((where, reason), entry)["rows"] += rows
