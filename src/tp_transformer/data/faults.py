"""Faults of a source of questions, and what is done about them."""

from dataclasses import dataclass, field
from typing import Any

from tp_transformer.foundation.errors import CorpusError


@dataclass
class Report:
    """What is done about faults: the first is an error, or each is counted and left out."""

    skip: bool
    entries: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def fault(self, where: str, line: int | None, reason: str, rows: int, detail: str = "") -> None:
        """Stop at a fault, or note that it cost `rows` rows of the file."""
        if not self.skip:
            at = where if line is None else f"{where}, line {line:,}"
            raise CorpusError(f"{at}: {detail or reason}")
        self.note(where, line, reason, rows)

    def note(self, where: str, line: int | None, reason: str, rows: int) -> None:
        """Note what was left out, and how many rows of it."""
        entry = {"file": where, "reason": reason, "rows": 0, "first_line": line}
        self.entries.setdefault((where, reason), entry)["rows"] += rows
