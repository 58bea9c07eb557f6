"""Batch: padding, masks and the target's shift, so that no other file counts positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tp_transformer.data.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Questions and answers as padded ids, each row `<sos> text <eos> <pad>…`."""

    source: Tensor  # (batch, source)
    target: Tensor  # (batch, target)
    pad: int

    @classmethod
    def from_text(
        cls, questions: Sequence[str], answers: Sequence[str], vocabulary: Vocabulary
    ) -> Self:
        """Encode and pad questions and their answers."""
        if len(questions) != len(answers):
            raise ValueError(f"{len(questions)} questions but {len(answers)} answers")
        return cls(
            source=torch.from_numpy(vocabulary.encode(questions).padded(vocabulary.pad)),
            target=torch.from_numpy(vocabulary.encode(answers).padded(vocabulary.pad)),
            pad=vocabulary.pad,
        )

    @property
    def target_input(self) -> Tensor:
        """What the decoder reads: the target without its last position."""
        return self.target[:, :-1]

    @property
    def target_output(self) -> Tensor:
        """What the decoder must say: the target without its start symbol."""
        return self.target[:, 1:]

    @property
    def target_mask(self) -> Tensor:
        """True where `target_output` holds a symbol to predict."""
        return self.target_output != self.pad

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        return type(self)(
            source=self.source.to(device), target=self.target.to(device), pad=self.pad
        )
