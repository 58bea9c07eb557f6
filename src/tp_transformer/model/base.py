"""What every model of the family can do: loss, solve, trace, save.

A model turns a source into a memory (`encode`), and a memory into scores of the next symbol: for
all positions of a known target at once (`decode`), or one symbol at a time (`begin`, `step`).
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tp_transformer.data.batch import Batch
from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.errors import FolderError, SettingsError, TextError
from tp_transformer.model import folder as model_folder
from tp_transformer.model.decoding import greedy
from tp_transformer.model.loss import Loss, token_loss
from tp_transformer.model.trace import Edit, Trace, Traced, trace, trace_names
from tp_transformer.settings import to_values

Config = TypeVar("Config")
Memory = TypeVar("Memory")
State = TypeVar("State")

ROWS_AT_ONCE = 256  # questions that `solve` decodes together


_DRAWS = {
    Tensor.normal_,
    Tensor.uniform_,
    nn.init.kaiming_uniform_,
    nn.init.normal_,
    nn.init.uniform_,
}


class WithoutWeights(TorchFunctionMode):
    """Inside, models are built without drawing their weights, which takes no time or memory.

    The meta device would serve too, but its first use costs two seconds of imports.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pass every call on but those that draw random numbers in place."""
        kwargs = kwargs or {}
        if func in _DRAWS:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


class Model(Traced, Generic[Config, Memory, State]):
    """A question-answering model over the symbols of a vocabulary."""

    architecture: ClassVar[str]
    n_positions: int | None = None  # the longest sequence, where there is a longest one

    def __init__(self, config: Config, n_vocab: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        if len(vocabulary) > n_vocab:
            raise SettingsError(
                f"a vocabulary of {len(vocabulary)} symbols needs n_vocab of at least that, "
                f"not {n_vocab}"
            )
        self.config = config
        self.vocabulary = vocabulary

    @abstractmethod
    def encode(self, source: Tensor) -> Memory:
        """Read questions, as padded ids (batch, source)."""

    @abstractmethod
    def decode(self, target: Tensor, memory: Memory) -> Tensor:
        """The scores of every symbol after each position of `target`: (batch, target, n_vocab)."""

    @abstractmethod
    def begin(self, memory: Memory, max_length: int) -> State:
        """The state before the first of at most `max_length` steps."""

    @abstractmethod
    def step(self, previous: Tensor, state: State) -> Tensor:
        """The scores (batch, n_vocab) of the next symbol, after one more `previous` (batch)."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The scores after each position of `target`, given `source`; both are padded ids."""
        return self.decode(target, self.encode(source))

    def loss(self, batch: Batch) -> Loss:
        """The loss of a batch's answers under teacher forcing."""
        return token_loss(self(batch.source, batch.target_input), batch)

    def solve(self, questions: Sequence[str], *, max_length: int = 30) -> list[str]:
        """Answer questions, with at most `max_length` characters each.

        Under a trace all questions are decoded together in the order given, so that what is
        recorded and what an edit sees are those questions, padded.
        """
        if isinstance(questions, str):
            raise TextError("solve takes a list of questions; put the one you have into a list")
        encoded = self.vocabulary.encode(questions)
        self._refuse_lengths(encoded, max_length)
        rows = np.arange(len(questions))
        if not self._traces:
            rows = np.argsort(encoded.lengths, kind="stable")
        rows_at_once = len(rows) if self._traces else ROWS_AT_ONCE
        answers = [""] * len(rows)
        for start in range(0, len(rows), rows_at_once):
            together = rows[start : start + rows_at_once]
            for row, answer in zip(
                together, self._solve_together(encoded.take(together), max_length), strict=True
            ):
                answers[row] = answer
        return answers

    def trace(
        self, *names: str, edit: Mapping[str, Edit] | None = None
    ) -> AbstractContextManager[Trace]:
        """Record the named tensors of the calls made inside, or replace those in `edit`.

        `trace[name]` is then what passed in the last call. Names may hold wildcards; `trace_names`
        lists them all.
        """
        return trace(self, *names, edit=edit)

    @property
    def trace_names(self) -> list[str]:
        """Every name that `trace` takes."""
        return trace_names(self)

    @property
    def n_parameters(self) -> int:
        """How many numbers are learned."""
        return sum(parameter.numel() for parameter in self.parameters())

    def save(self, folder: str | Path) -> None:
        """Write the model as a folder that `tp_transformer.load` reads."""
        config = {"architecture": self.architecture, **to_values(self.config)}
        contents = model_folder.Contents(config, self.state_dict(), self.vocabulary)
        model_folder.write(folder, contents)

    @classmethod
    def from_weights(
        cls, config: Config, vocabulary: Vocabulary, weights: Mapping[str, Tensor]
    ) -> Self:
        """A model with the given weights, without drawing any that would be thrown away."""
        with WithoutWeights():
            model = cls(config, vocabulary)  # type: ignore[call-arg]
        expected = model.state_dict()
        for problem, names in (
            ("lack", expected.keys() - weights.keys()),
            ("have an unknown", weights.keys() - expected.keys()),
        ):
            if names:
                raise FolderError(f"the weights {problem} tensor {min(names)!r}")
        for name, tensor in weights.items():
            if tensor.shape != expected[name].shape or not tensor.is_floating_point():
                raise FolderError(
                    f"the weights have {name!r} as {tensor.dtype} {tuple(tensor.shape)}, where the "
                    f"configuration calls for numbers of shape {tuple(expected[name].shape)}"
                )
        model.load_state_dict(dict(weights), assign=True)
        return model

    def _solve_together(self, questions: Ragged, max_length: int) -> list[str]:
        source = torch.from_numpy(questions.padded(self.vocabulary.pad))
        was_training = self.training
        self.train(False)
        try:
            with torch.no_grad():
                symbols = greedy(self, source.to(next(self.parameters()).device), max_length)
        finally:
            self.train(was_training)
        return self.vocabulary.decode(symbols.cpu().numpy())

    def _refuse_lengths(self, questions: Ragged, max_length: int) -> None:
        """Refuse questions that are empty or too long, and answers that have no room."""
        longest = self.n_positions or np.inf
        lengths = questions.lengths  # start and end included
        for row in np.flatnonzero(lengths == 2):
            raise TextError(f"question {row + 1} is empty")
        for row in np.flatnonzero(lengths > longest):
            raise TextError(
                f"question {row + 1} has {lengths[row] - 2} characters; "
                f"the model reads at most {longest - 2}"
            )
        if not 0 <= max_length <= longest:
            raise SettingsError(f"the model cannot write answers of {max_length} characters")
