"""The base class of models: forward pass, loss, solve, trace, save.

A model computes a memory from a source (`encode`), and logits of the next token from the memory:
for all positions of a known target at once (`decode`), or one token at a time (`begin`, `step`).
Training, validation and scoring call `model(batch)`, which is `encode` followed by `decode`.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

import torch
from torch import Tensor

from tp_transformer.data.vocabulary import MAX_ANSWER, OF_THE_PAPER, Vocabulary
from tp_transformer.errors import FolderError, SettingsError
from tp_transformer.model import folder as model_folder
from tp_transformer.model.batch import Batch
from tp_transformer.model.config import WithoutWeights
from tp_transformer.model.layout import Layout, Packed, Padded, has_flash_attention
from tp_transformer.model.loss import Loss, token_loss
from tp_transformer.model.search import SearchState
from tp_transformer.model.solver import Solver
from tp_transformer.model.trace import Edit, Trace, Traced, is_traced, trace, trace_names
from tp_transformer.ops.int8 import is_quantised, quantised
from tp_transformer.ranges import Precision
from tp_transformer.registry import Registry
from tp_transformer.settings import to_dataclass, to_values
from tp_transformer.table import notebook_table

if TYPE_CHECKING:
    from tp_transformer.data.store import Example

Config = TypeVar("Config")
Memory = TypeVar("Memory")
State = TypeVar("State", bound=SearchState)

_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}

ARCHITECTURES: "Registry[type[Model[Any, Any, Any]]]" = Registry("architecture")


class Model(Traced, Generic[Config, Memory, State]):
    """A question-answering model over the tokens of a vocabulary."""

    config_type: ClassVar[type[Any]]
    reads_packed: ClassVar[bool] = False  # whether it accepts packed batches
    has_int8: ClassVar[bool] = False  # whether its products are those of linear layers
    # Whether C kernels may answer and score questions instead of the modules (`engine_for`); it is
    # replaced by the engine when there is one. None switches it off.
    engine: Any = None
    n_positions: int | None = None  # maximum sequence length, if limited
    dropout: float = 0.0
    max_answer: int = MAX_ANSWER  # default for the maximum number of tokens of an answer

    def __init__(self, config: Config, vocabulary: Vocabulary | None) -> None:
        super().__init__()
        # By default, the vocabulary of the paper's models.
        self.vocabulary = vocabulary or OF_THE_PAPER
        self.config = self.sized(config, self.vocabulary)
        self.n_vocab: int = cast(Any, self.config).n_vocab
        if len(self.vocabulary) > self.n_vocab:
            raise SettingsError(
                f"a vocabulary of {len(self.vocabulary)} tokens needs n_vocab of at least that, "
                f"not {self.n_vocab}"
            )

    def extra_repr(self) -> str:
        """Return the first line of the text that torch shows for a module."""
        tokens = f"{len(self.vocabulary)} {self.vocabulary.tokenisation}"
        return f"{self.n_parameters:,} parameters, vocabulary of {tokens}"

    def _repr_html_(self) -> str:
        children = [
            (name, f"{sum(parameter.numel() for parameter in child.parameters()):,} parameters")
            for name, child in self.named_children()
        ]
        title = f"{type(self).__name__}: {self.n_parameters:,} parameters"
        fields = self.config_values(self.config).items()
        return notebook_table(title, ("", ""), [*fields, *children])

    @abstractmethod
    def encode(self, source: Tensor, layout: Layout | None = None) -> Memory:
        """Encode questions (batch, source), which are padded if no layout is given."""

    @abstractmethod
    def decode(self, target: Tensor, memory: Memory, layout: Layout | None = None) -> Tensor:
        """Return the logits after each position of `target`: (batch, target, n_vocab)."""

    @abstractmethod
    def begin(self, memory: Memory, max_length: int) -> State:
        """Return the state before the first of at most `max_length` steps."""

    @abstractmethod
    def step(self, previous: Tensor, state: State) -> Tensor:
        """Return the logits (batch, n_vocab) of the token after `previous` (batch)."""

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits after each position of the targets: (batch, target, n_vocab).

        They have the layout of the batch.
        """
        memory = self.encode(batch.source, batch.source_layout)
        return self.decode(batch.target_input, memory, batch.target_layout)

    def loss(self, batch: Batch, *, label_smoothing: float = 0.0) -> Loss:
        """Return the loss of the answers of a batch under teacher forcing."""
        return token_loss(self(batch), batch, label_smoothing)

    def layout_for(
        self, device: torch.device, dtype: torch.dtype = torch.float32, n_rows: int | None = None
    ) -> type[Layout]:
        """Return the fastest layout of this model on a device, for products in a dtype.

        Traces need padded rows, because they record (batch, position, …). A single row has no
        padding. On a GPU, packed rows need flash attention, which requires half precision and no
        dropout.
        """
        if not self.reads_packed or n_rows == 1 or is_traced(self):
            return Padded
        if device.type == "cpu" or (self.dropout == 0 and has_flash_attention(device, dtype)):
            return Packed
        return Padded

    def in_precision(self, precision: Precision) -> Self:
        """Return this model cast to a precision, or a copy in int8, which is for inference only.

        In int8, the linear layers round weights and inputs (`tp_transformer.ops.int8`).
        """
        if precision != "int8":
            return self.to(getattr(torch, precision))
        if not self.has_int8:
            raise SettingsError(
                f"the architecture {self.architecture()} has no int8: use float32 or bfloat16"
            )
        device = next(self.parameters()).device.type
        if device != "cpu":
            raise SettingsError(f"int8 needs the device cpu, not {device}: use --device cpu")
        return quantised(self)

    def compile_layers(self) -> None:
        """Compile the model with torch, which takes a minute; steps are then slightly faster."""
        self.compile(dynamic=True)

    def solve(
        self, questions: Iterable[str], *, max_length: int | None = None, beam: int = 1
    ) -> list[str]:
        """Answer questions, with at most `max_length` tokens each; see `Solver.solve`."""
        return Solver(self).solve(questions, max_length=max_length, beam=beam)

    def trace(
        self, *names: str, edit: Mapping[str, Edit] | None = None
    ) -> AbstractContextManager[Trace]:
        """Record the named tensors of calls in the context, and replace those in `edit`.

        `trace[name]` is the tensor of the last call. Names may contain wildcards; `trace_names`
        lists all names.
        """
        return trace(self, *names, edit=edit)

    def note_tokens(self, side: str, ids: Tensor) -> None:
        """Let active traces keep the ids (batch, position) of the source or the target."""
        for _, active in self._traces:
            active.note_tokens(side, ids, self.vocabulary.tokens)

    def collate(self, examples: "Sequence[Example]") -> Batch:
        """Return examples of a store as a padded batch, as the `collate_fn` of a DataLoader."""
        questions = [example.question for example in examples]
        return Batch.from_text(questions, [each.answer for each in examples], self.vocabulary)

    @property
    def trace_names(self) -> list[str]:
        """All names that `trace` accepts."""
        return trace_names(self)

    @property
    def n_parameters(self) -> int:
        """The number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    @classmethod
    def sized(cls, config: Config, vocabulary: Vocabulary) -> Config:
        """Return the configuration with `n_vocab` set to the size of a vocabulary if absent."""
        fields: Any = config
        return replace(fields, n_vocab=len(vocabulary)) if fields.n_vocab is None else fields

    @classmethod
    def read_config(cls, values: Mapping[str, Any], where: str) -> Config:
        """Return the configuration from the fields of a file or of options."""
        return to_dataclass(cls.config_type, values, where)

    @classmethod
    def config_values(cls, config: Config) -> dict[str, Any]:
        """Return the architecture and the fields of a configuration, for `read_config`."""
        return {"architecture": cls.architecture(), **to_values(config)}

    @classmethod
    def architecture(cls) -> str:
        """Return the name under which the class or its base class is registered."""
        names = {kind: name for name, kind in ARCHITECTURES.items()}
        return next(names[kind] for kind in cls.__mro__ if kind in names)

    def save(self, folder: str | Path) -> None:
        """Write a model folder that `tp_transformer.load` reads."""
        if is_quantised(self):
            raise FolderError("a model in int8 cannot be saved: save it before `in_precision`")
        config = self.config_values(self.config)
        if self.max_answer != Model.max_answer:
            config["max_answer"] = self.max_answer
        contents = model_folder.Contents(config, self.state_dict(), self.vocabulary)
        model_folder.write(folder, contents)

    @classmethod
    def from_weights(
        cls, config: Config, vocabulary: Vocabulary, weights: Mapping[str, Tensor]
    ) -> Self:
        """Return a model with the given weights, without initialising others first."""
        with WithoutWeights():
            model = cls(config, vocabulary)
        expected = model.state_dict()
        for problem, names in (
            ("lack", expected.keys() - weights.keys()),
            ("have an unknown", weights.keys() - expected.keys()),
        ):
            if names:
                raise FolderError(f"the weights {problem} tensor {min(names)!r}")
        dtypes = {tensor.dtype for tensor in weights.values()}
        if len(dtypes) != 1 or not dtypes <= _DTYPES:
            raise FolderError(f"the weights must all have one type, not {_listed(dtypes)}")
        for name, tensor in weights.items():
            if tensor.shape != expected[name].shape:
                raise FolderError(
                    f"the weights have {name!r} with shape {tuple(tensor.shape)}, but the "
                    f"configuration requires {tuple(expected[name].shape)}"
                )
        model.load_state_dict(dict(weights), assign=True)
        return model


def _require_own_config(name: str, kind: type[Model[Any, Any, Any]]) -> None:
    for other, model in ARCHITECTURES.items():
        if model.config_type is kind.config_type:
            raise ValueError(
                f"the architecture {name} needs a config_type of its own, because {other} has "
                f"{kind.config_type.__name__}"
            )


ARCHITECTURES.require(_require_own_config)  # `class_of` finds an architecture by its config_type


def _listed(dtypes: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)) or "none"
