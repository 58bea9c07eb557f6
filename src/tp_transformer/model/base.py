"""What every model of the family can do: loss, solve, trace, save.

A model turns a source into a memory (`encode`), and a memory into scores of the next symbol: for
all positions of a known target at once (`decode`), or one symbol at a time (`begin`, `step`).
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tp_transformer.data.batch import Batch, Packed
from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.errors import FolderError, SettingsError, TextError, TraceError
from tp_transformer.model import folder as model_folder
from tp_transformer.model.decoding import greedy
from tp_transformer.model.loss import Loss, token_loss
from tp_transformer.model.trace import (
    Edit,
    Trace,
    Traced,
    is_traced,
    one_call,
    trace,
    trace_names,
)
from tp_transformer.settings import to_values

Config = TypeVar("Config")
Memory = TypeVar("Memory")
State = TypeVar("State")

_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}

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
    can_pack: ClassVar[bool] = False  # whether it reads packed batches
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

    def scores_packed(self, packed: Packed) -> Tensor:
        """The scores after each target position of a packed batch: (1, position, n_vocab)."""
        raise NotImplementedError(f"{type(self).__name__} does not read packed batches")

    def loss(self, batch: Batch | Packed, *, label_smoothing: float = 0.0) -> Loss:
        """The loss of a batch's answers under teacher forcing.

        On a CPU its padding is left out of the computation where nobody traces it.
        """
        if isinstance(batch, Batch) and self._should_pack(batch):
            batch = Packed.of(batch)
        if isinstance(batch, Batch):
            return token_loss(self(batch.source, batch.target_input), batch, label_smoothing)
        if is_traced(self):
            raise TraceError("a packed batch cannot be traced: its positions have no rows; pad it")
        return token_loss(self.scores_packed(batch), batch, label_smoothing)

    def _should_pack(self, batch: Batch) -> bool:
        is_there = len(batch) > 0 and batch.source.device.type == "cpu"
        return self.can_pack and is_there and not is_traced(self)

    def compile_layers(self) -> None:
        """Have torch compile what is worth it: a minute at the start, some percent from then on."""
        self.compile(dynamic=True)

    def solve(self, questions: Iterable[str], *, max_length: int = 30) -> list[str]:
        """Answer questions, with at most `max_length` characters each.

        Under a trace all questions are decoded together in the order given, so that what is
        recorded and what an edit sees are those questions, padded.
        """
        texts = _as_texts(questions)
        encoded = self.vocabulary.encode(texts, "question")
        self._refuse_lengths(encoded, max_length)
        answers = [""] * len(texts)
        with one_call(self) as traced:
            groups = [np.arange(len(texts))]
            if not traced:
                by_length = np.argsort(encoded.lengths, kind="stable")
                groups = np.split(by_length, range(ROWS_AT_ONCE, len(texts), ROWS_AT_ONCE))
            for rows in groups:
                found = self._solve_together(encoded.take(rows), max_length) if len(rows) else []
                for row, answer in zip(rows, found, strict=True):
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
        dtypes = {tensor.dtype for tensor in weights.values()}
        if len(dtypes) != 1 or not dtypes <= _DTYPES:
            raise FolderError(f"the weights must be all of one type, not {_listed(dtypes)}")
        for name, tensor in weights.items():
            if tensor.shape != expected[name].shape:
                raise FolderError(
                    f"the weights have {name!r} with shape {tuple(tensor.shape)}, where the "
                    f"configuration calls for {tuple(expected[name].shape)}"
                )
        model.load_state_dict(dict(weights), assign=True)
        return model

    def _solve_together(self, questions: Ragged, max_length: int) -> list[str]:
        source = torch.from_numpy(questions.padded(self.vocabulary.pad))
        in_training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            with torch.no_grad():
                symbols = greedy(self, source.to(next(self.parameters()).device), max_length)
        finally:
            for module in in_training:
                module.training = True
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


def _as_texts(questions: Iterable[str]) -> list[str]:
    if isinstance(questions, str):
        raise TextError("solve takes a list of questions; put the one you have into a list")
    texts = list(questions)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise TextError(f"question {number} is not a text but {type(text).__name__}")
    return texts


def _listed(dtypes: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)) or "none"
