"""What every model of the family can do: loss, solve, trace, save.

A model turns a source into a memory (`encode`), and a memory into scores of the next token: for all
positions of a known target at once (`decode`), or one token at a time (`begin`, `step`). Training,
validation and scoring all call `model(batch)`, which is `encode` and then `decode`.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from tp_transformer.data.batch import Batch
from tp_transformer.data.layout.base import Layout
from tp_transformer.data.layout.packed import Packed, has_flash_attention
from tp_transformer.data.layout.padded import Padded
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.foundation.errors import FolderError, SettingsError
from tp_transformer.foundation.registry import Registry
from tp_transformer.foundation.settings import to_dataclass, to_values
from tp_transformer.model import folder as model_folder
from tp_transformer.model.decoding import SearchState
from tp_transformer.model.loss import Loss, token_loss
from tp_transformer.model.solver import Solver
from tp_transformer.model.trace import Edit, Trace, Traced, is_traced, trace, trace_names
from tp_transformer.model.weightless import WithoutWeights

Config = TypeVar("Config")
Memory = TypeVar("Memory")
State = TypeVar("State", bound=SearchState)

_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}

ARCHITECTURES: "Registry[type[Model[Any, Any, Any]]]" = Registry("architecture")


class Model(Traced, Generic[Config, Memory, State]):
    """A question-answering model over the symbols of a vocabulary."""

    config_type: ClassVar[type[Any]]
    reads_packed: ClassVar[bool] = False  # whether it computes packed batches
    n_positions: int | None = None  # the longest sequence, where there is a longest one
    dropout: float = 0.0

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
    def encode(self, source: Tensor, layout: Layout | None = None) -> Memory:
        """Read questions as ids (batch, source), which are padded if no layout is given."""

    @abstractmethod
    def decode(self, target: Tensor, memory: Memory, layout: Layout | None = None) -> Tensor:
        """The scores of every token after each position of `target`: (batch, target, n_vocab)."""

    @abstractmethod
    def begin(self, memory: Memory, max_length: int) -> State:
        """The state before the first of at most `max_length` steps."""

    @abstractmethod
    def step(self, previous: Tensor, state: State) -> Tensor:
        """The scores (batch, n_vocab) of the next token, after one more `previous` (batch)."""

    def forward(self, batch: Batch) -> Tensor:
        """The scores of every token after each position of the targets: (batch, target, n_vocab).

        They are in the layout of the batch.
        """
        memory = self.encode(batch.source, batch.source_layout)
        return self.decode(batch.target_input, memory, batch.target_layout)

    def loss(self, batch: Batch, *, label_smoothing: float = 0.0) -> Loss:
        """The loss of a batch's answers under teacher forcing."""
        return token_loss(self(batch), batch, label_smoothing)

    def layout_for(self, device: torch.device, dtype: torch.dtype = torch.float32) -> type[Layout]:
        """The layout in which this model computes fastest on a device, with products in a dtype.

        A trace asks for padded rows, since what it records is (batch, position, …). On a GPU packed
        rows need flash attention, which computes in half precision and without dropout.
        """
        if not self.reads_packed or is_traced(self):
            return Padded
        if device.type == "cpu" or (self.dropout == 0 and has_flash_attention(device, dtype)):
            return Packed
        return Padded

    def compile_layers(self) -> None:
        """Have torch compile what is worth it: a minute at the start, some percent from then on."""
        self.compile(dynamic=True)

    def solve(self, questions: Iterable[str], *, max_length: int = 30, beam: int = 1) -> list[str]:
        """Answer questions, with at most `max_length` characters each; see `Solver.solve`."""
        return Solver(self).solve(questions, max_length=max_length, beam=beam)

    def trace(
        self, *names: str, edit: Mapping[str, Edit] | None = None
    ) -> AbstractContextManager[Trace]:
        """Record the named tensors of the calls made inside, or replace those in `edit`.

        `trace[name]` is then what passed in the last call. Names may hold wildcards; `trace_names`
        lists them all.
        """
        return trace(self, *names, edit=edit)

    def note_tokens(self, side: str, ids: Tensor) -> None:
        """Let active traces keep the ids (batch, position) of the source or the target."""
        for _, active in self._traces:
            active.note_tokens(side, ids, self.vocabulary.symbols)

    @property
    def trace_names(self) -> list[str]:
        """Every name that `trace` takes."""
        return trace_names(self)

    @property
    def n_parameters(self) -> int:
        """How many numbers are learned."""
        return sum(parameter.numel() for parameter in self.parameters())

    @classmethod
    def read_config(cls, values: Mapping[str, Any], where: str) -> Config:
        """The configuration that the fields of a file or of options describe."""
        return to_dataclass(cls.config_type, values, where)

    @classmethod
    def config_values(cls, config: Config) -> dict[str, Any]:
        """The fields that `read_config` makes the same configuration of, and the architecture."""
        return {"architecture": cls.architecture(), **to_values(config)}

    @classmethod
    def architecture(cls) -> str:
        """The name under which the class, or the class it derives from, is registered."""
        names = {kind: name for name, kind in ARCHITECTURES.items()}
        return next(names[kind] for kind in cls.__mro__ if kind in names)

    def save(self, folder: str | Path) -> None:
        """Write the model as a folder that `tp_transformer.load` reads."""
        config = self.config_values(self.config)
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


def _listed(dtypes: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)) or "none"
