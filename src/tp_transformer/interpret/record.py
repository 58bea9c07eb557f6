"""What passes named points of a model, question by question and without padding.

The answers are given, not decoded: what the decoder's points see is what greedy decoding would have
seen, wherever the answer is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tp_transformer.data.batch import Batch, group_by_length
from tp_transformer.data.permutation import key_of, permute
from tp_transformer.data.store import Store
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.model.family import AnyModel, from_config
from tp_transformer.model.solver import evaluating
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.verdict import judge
from tp_transformer.settings import nearest

Floats = npt.NDArray[np.float32]

START, END = "#", "%"  # how the paper's figures write the symbols around a question
AT_ONCE = 32  # questions in a pass
ENCODER, DECODER, CROSS = "encoder", "decoder", "cross"
ATTENTIONS = {
    ENCODER: "encoder.{}.self_attention",
    DECODER: "decoder.{}.self_attention",
    CROSS: "decoder.{}.cross_attention",
}
TITLES = {
    ENCODER: "Encoder self-attention",
    DECODER: "Decoder self-attention",
    CROSS: "Attention of the decoder to the question",
}


class NoneAnsweredError(UserError):
    """There is no question that the model answers."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Questions and their right answers, and in words where they come from."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]
    origin: str

    def __post_init__(self) -> None:
        if len(self.questions) != len(self.answers):
            raise ValueError(f"{len(self.questions)} questions but {len(self.answers)} answers")
        if not self.questions:
            raise SettingsError("an analysis needs at least one question")

    def __len__(self) -> int:
        return len(self.questions)

    def some(self, numbers: Sequence[int]) -> "Sample":
        """A few of the questions, by their numbers."""
        return Sample(
            questions=tuple(self.questions[number] for number in numbers),
            answers=tuple(self.answers[number] for number in numbers),
            origin=self.origin,
        )


def transformer_of(model: AnyModel) -> Transformer:
    """The model, if it is one that attends; an LSTM is refused."""
    if not isinstance(model, Transformer):
        raise UserError("this analysis looks at attention, of which an LSTM has none")
    return model


def chosen_layer(model: Transformer, layer: int) -> int:
    """The number of a layer from 0; it may be counted from the end, -1 being the last."""
    n_layers = model.config.n_layers
    if not -n_layers <= layer < n_layers:
        raise SettingsError(
            f"the model has layers 0 to {n_layers - 1}, or -1 for the last, but none {layer}"
        )
    return layer % n_layers


def point(where: str, layer: int, name: str) -> str:
    """The full name of a point, such as `role`, of the attention of a layer; see `ATTENTIONS`."""
    if where not in ATTENTIONS:
        raise SettingsError(
            f"there is no attention {where!r}{nearest(where, ATTENTIONS)}; "
            f"there are {', '.join(ATTENTIONS)}"
        )
    return f"{ATTENTIONS[where].format(layer)}.{name}"


def fresh(model: Transformer, seed: int) -> Transformer:
    """A model of the same configuration with initial weights: such as training starts from.

    They are another draw, not the very weights that this model started from.
    """
    parameter = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = transformer_of(from_config(model.config, model.vocabulary))
    return drawn.to(parameter.device, parameter.dtype).eval()


def symbols(question: str) -> str:
    """A character for each source position."""
    return START + question + END


def draw(
    model: AnyModel,
    store: Store,
    *,
    module: str = "arithmetic__mixed",
    split: str = "interpolate",
    count: int = 128,
    seed: int = 0,
    answered: bool = True,
) -> Sample:
    """Questions of a module at random; by default only such as the model answers correctly.

    Where the model does not answer so many, the sample is smaller, and says so.
    """
    if count < 1:
        raise SettingsError(f"a sample has at least 1 question, not {count}")
    found = store[split].modules
    if module not in found:
        raise SettingsError(f"{store.path} has no {module} in its {split} split")
    rows = found[module]
    order = permute(np.arange(len(rows)), len(rows), key_of(seed, store.task.place(split, module)))
    taken: list[int] = []
    asked = 0
    for start in range(0, len(order), max(count, AT_ONCE)):
        drawn = rows.start + order[start : start + max(count, AT_ONCE)]
        asked += len(drawn)
        taken += (drawn[_right(model, store, split, drawn)] if answered else drawn).tolist()
        if len(taken) >= count:
            break
    if not taken:
        raise NoneAnsweredError(
            f"the model answers none of the {asked:,} questions of {module}: train it for longer, "
            "choose another module, or look at any questions (--answered false)"
        )
    questions, answers = store[split].rows(taken[:count])
    noun = "question" if len(questions) == 1 else "questions"
    which = f"{len(questions)} {noun} of {module} ({split}, seed {seed})"
    few = f", all of {asked:,} that it" if answered and len(questions) < count else ", which it"
    return Sample(
        questions=tuple(questions),
        answers=tuple(answers),
        origin=which + (f"{few} answers correctly" if answered else ""),
    )


def _right(
    model: AnyModel, store: Store, split: str, rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    source, target = store[split].tokens(rows, model.vocabulary)
    with evaluating(model):
        return judge(model, source, target).right


def portions(sample: Sample) -> Iterator[tuple[list[int], Sample]]:
    """The questions that pass a model together, with their numbers in the sample.

    They are of like lengths, as padding takes time.
    """
    lengths = np.array([len(question) for question in sample.questions])
    for rows in group_by_length(lengths, limit=AT_ONCE):
        numbers = rows.tolist()
        yield numbers, sample.some(numbers)


class Recording:
    """What passed named points, for each question of a sample: arrays without padding."""

    def __init__(self, pieces: dict[str, list[Floats]]) -> None:
        self._pieces = pieces

    def __getitem__(self, name: str) -> list[Floats]:
        """For each question (head, position, d_head), or (position, d_model) for states.

        Attention weights are (head, query, key).
        """
        return self._pieces[name]

    def flat(self, name: str) -> Floats:
        """The vectors of all positions, question after question: (position, head, d_head).

        States have no heads: (position, d_model).
        """
        pieces = self[name]
        if pieces[0].ndim == 2:
            return np.concatenate(pieces)
        return np.concatenate([piece.transpose(1, 0, 2) for piece in pieces])


def record(model: AnyModel, sample: Sample, names: Sequence[str]) -> Recording:
    """Run the model over a sample and keep what passes the named points (no wildcards)."""
    pieces: dict[str, list[Floats]] = {name: [] for name in names}
    device = next(model.parameters()).device
    order: list[int] = []
    with evaluating(model), torch.no_grad(), model.trace(*names) as trace:
        for numbers, few in portions(sample):
            batch = Batch.from_text(few.questions, few.answers, model.vocabulary).to(device)
            model(batch)
            for name in names:
                pieces[name] += _unpadded(name, trace[name], few.questions, few.answers)
            order += numbers
    places = np.argsort(order)
    return Recording({name: [own[place] for place in places] for name, own in pieces.items()})


def _unpadded(
    name: str, tensor: Tensor, questions: Sequence[str], answers: Sequence[str]
) -> list[Floats]:
    """The rows of a padded tensor, each cut to its own positions."""
    source = [len(question) + 2 for question in questions]
    target = [len(answer) + 1 for answer in answers]  # what the decoder reads: without the end
    attention, _, point = name.rpartition(".")
    in_decoder = name.startswith("decoder")
    keys = target if in_decoder and attention.endswith("self_attention") else source
    queries = target if in_decoder else source
    positions = keys if point in {"key", "value"} else queries
    rows = tensor.float().cpu().numpy()
    if point == "weights":
        return [
            row[:, :query, :key].copy() for row, query, key in zip(rows, queries, keys, strict=True)
        ]
    return [row[..., :length, :].copy() for row, length in zip(rows, positions, strict=True)]
