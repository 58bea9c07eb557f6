"""What every model of the family can do: loss, solve, trace, save.

A model turns a source into a memory (`encode`), and a memory into scores of the next symbol: for
all positions of a known target at once (`decode`), or one symbol at a time (`begin`, `step`).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
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
from tp_transformer.model.decoding import Found, SearchState, beam_search, greedy
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
from tp_transformer.ranges import AnswerLength, Beams, LengthPenalty, check
from tp_transformer.settings import to_values

Config = TypeVar("Config")
Memory = TypeVar("Memory")
State = TypeVar("State", bound=SearchState)
T = TypeVar("T")

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


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer that a search found.

    Attributes:
        text: the answer
        log_probability: of its symbols, the end symbol included
        score: the same after the length penalty, by which answers are compared
        is_complete: whether it came to its end, or was cut at the longest length
    """

    text: str
    log_probability: float
    score: float
    is_complete: bool


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
        packs = len(batch) > 0 and self.packs_on(batch.source.device) and not is_traced(self)
        if isinstance(batch, Batch) and packs:
            batch = Packed.of(batch)
        if isinstance(batch, Batch):
            return token_loss(self(batch.source, batch.target_input), batch, label_smoothing)
        if is_traced(self):
            raise TraceError("a packed batch cannot be traced: its positions have no rows; pad it")
        return token_loss(self.scores_packed(batch), batch, label_smoothing)

    def packs_on(self, device: torch.device) -> bool:
        """Whether batches are packed for this model on a device.

        A GPU does better with few padded parts: packed attention takes many small products.
        """
        return self.can_pack and device.type == "cpu"

    def compile_layers(self) -> None:
        """Have torch compile what is worth it: a minute at the start, some percent from then on."""
        self.compile(dynamic=True)

    def solve(self, questions: Iterable[str], *, max_length: int = 30, beam: int = 1) -> list[str]:
        """Answer questions, with at most `max_length` characters each.

        One beam is greedy search; with more, the answer is the best of `answers`. Under a trace all
        questions are decoded together in the order given, from the first step to the last, so that
        what is recorded and what an edit sees are those questions, padded.
        """
        if beam != 1:
            found = self.answers(questions, max_length=max_length, beam=beam)
            return [answers[0].text for answers in found]
        encoded = self.read(_as_texts(questions))
        self._refuse_length(max_length)
        with one_call(self) as traced:

            def search(source: Tensor) -> list[str]:
                symbols = greedy(self, source, max_length, rows_may_leave=not traced)
                return self.vocabulary.decode(symbols.cpu().numpy())

            return self._search(encoded, search, None if traced else ROWS_AT_ONCE)

    def answers(
        self,
        questions: Iterable[str],
        *,
        max_length: int = 30,
        beam: int = 5,
        n_best: int | None = None,
        length_penalty: float = 0.0,
    ) -> list[list[Answer]]:
        """The best answers to each question, best first: as many as there are beams, or `n_best`.

        What an answer scores is its log-probability, divided by its length to the power of the
        penalty; see `beam_search`.
        """
        encoded = self.read(_as_texts(questions))
        self._refuse_length(max_length)
        _refuse_search(beam, n_best, length_penalty)
        if is_traced(self):
            raise TraceError("a beam search cannot be traced: its rows change; use solve(beam=1)")

        def search(source: Tensor) -> list[list[Answer]]:
            found = beam_search(self, source, max_length, beam, length_penalty)
            return [self._answers(answers)[:n_best] for answers in found]

        return self._search(encoded, search, max(ROWS_AT_ONCE // beam, 1))

    def read(self, questions: Sequence[str], noun: str = "question", first: int = 1) -> Ragged:
        """The ids of questions; refuses those that are empty, too long or hold other characters.

        Errors call a question by `noun` and by its number, counted from `first`.
        """
        encoded = self.vocabulary.encode(questions, noun, first)
        longest = self.n_positions or np.inf
        lengths = encoded.lengths  # start and end included
        for row in np.flatnonzero(lengths == 2):
            raise TextError(f"{noun} {row + first} is empty")
        for row in np.flatnonzero(lengths > longest):
            raise TextError(
                f"{noun} {row + first} has {lengths[row] - 2} characters; "
                f"the model reads at most {longest - 2}"
            )
        return encoded

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

    def _search(
        self, questions: Ragged, search: Callable[[Tensor], list[T]], at_once: int | None
    ) -> list[T]:
        """What a search finds for each question, those of like lengths searched together.

        Without a limit, all are searched together in the order given.
        """
        order = np.arange(len(questions.lengths))
        if at_once is not None:
            order = np.argsort(questions.lengths, kind="stable")
        device = next(self.parameters()).device
        found: dict[int, T] = {}
        with evaluating(self), torch.no_grad():
            for start in range(0, len(order), at_once or len(order) or 1):
                rows = order[start : start + (at_once or len(order))]
                padded = questions.take(rows).padded(self.vocabulary.pad)
                source = torch.from_numpy(padded).to(device)
                found.update(zip(rows.tolist(), search(source), strict=True))
        return [found[row] for row in range(len(order))]

    def _answers(self, found: list[Found]) -> list[Answer]:
        """What was found as texts, each once.

        Two texts can be the same although their symbols are not, since a special symbol is spelled
        out.
        """
        answers: dict[str, Answer] = {}
        for one in found:
            (text,) = self.vocabulary.decode(np.array([one.symbols], dtype=np.int64))
            answer = Answer(
                text=text,
                log_probability=one.log_probability,
                score=one.score,
                is_complete=one.is_complete,
            )
            answers.setdefault(text, answer)
        return list(answers.values())

    def _refuse_length(self, max_length: int) -> None:
        check("max_length", max_length, AnswerLength)
        if max_length > (self.n_positions or np.inf):
            raise SettingsError(f"the model cannot write answers of {max_length} characters")


def _refuse_search(beam: int, n_best: int | None, length_penalty: float) -> None:
    """Refuse a search that cannot be."""
    check("beam", beam, Beams)
    check("length_penalty", length_penalty, LengthPenalty)
    if n_best is not None and not 1 <= n_best <= beam:
        raise SettingsError(f"{beam} beams find 1 to {beam} answers to a question, not {n_best}")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Inside, the module is in evaluation mode; afterwards each part is as it was."""
    in_training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in in_training:
            part.training = True


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
