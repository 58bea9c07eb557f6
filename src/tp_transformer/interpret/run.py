"""One analysis from a model and a store to its files: what `tpt interpret` does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tp_transformer.data.store import open_store
from tp_transformer.distributed import choose_device
from tp_transformer.errors import SettingsError
from tp_transformer.interpret import (
    attention_maps,
    binding_problem,
    information,
    roles,
    surgery,
    tensor_product,
)
from tp_transformer.interpret.choices import chosen_heads, chosen_place, chosen_positions
from tp_transformer.interpret.nested import MOST_FRACTIONS
from tp_transformer.interpret.outcome import Context, Values
from tp_transformer.interpret.record import (
    ENCODER,
    NoneAnsweredError,
    Sample,
    chosen_layer,
    draw,
    transformer_of,
)
from tp_transformer.interpret.surgery_result import Surgery
from tp_transformer.model.family import load
from tp_transformer.model.transformer import Transformer
from tp_transformer.provenance import circumstances, describe
from tp_transformer.ranges import Count, Layer, PositiveInt, Seed32, check_fields


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to look at.

    Attributes:
        data: the store that the questions come from
        model: a run or a model folder
        against: a second model, where an analysis compares two
        module: of the questions
        split: of the questions
        count: questions
        answered: whether only those that the model answers; each analysis has its own default
        layer: of the encoder or decoder, counted from 0, or from the end: -1 is the last
        head: one head instead of all
        at: a place in the questions to operate on the roles of, one of `structure.PLACES`
        clusters: of each head's roles
        vectors: role or value, in place of roles where there are any
        where: encoder, decoder or cross
        relation: one, in place of all
        questions: to show the maps of, in place of some of the sample
        seed: another one, other questions and other draws
        device: where the model runs
    """

    data: Path
    model: Path | None = None
    against: Path | None = None
    module: str = "arithmetic__mixed"
    split: str = "interpolate"
    count: PositiveInt = 128
    answered: bool | None = None
    layer: Layer | None = None
    head: Count | None = None
    at: str | None = None
    clusters: PositiveInt = 20
    vectors: str | None = None
    where: str = ENCODER
    relation: str | None = None
    questions: Sequence[str] | None = None
    seed: Seed32 = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def one_layer(self) -> int:
        """The layer, the last one if none is named."""
        return -1 if self.layer is None else self.layer


@dataclass(frozen=True)
class Outcome:
    """What was found, in words, and the files that have the rest."""

    lines: list[str]
    files: list[Path]


@dataclass(frozen=True)
class Subject:
    """A model to analyse, and what identifies it."""

    model: Transformer
    described: Values  # when it was loaded: a run that goes on has other weights by now

    def context(self, sample: Sample) -> Context:
        """The context of what is found with these questions."""
        made = circumstances(next(self.model.parameters()).device)
        return Context(model=self.described, made=made, sample=sample)


def interpret(name: str, options: Options, out: str | Path) -> Outcome:
    """Make one of the `ANALYSES` and write its numbers and figures into a folder."""
    file = next((one for one in (Path(out), *Path(out).parents) if one.is_file()), None)
    if file is not None:
        raise SettingsError(f"{file} is a file; name a folder for the analysis")
    return ANALYSES[name](options, Path(out))


def _load(options: Options, folder: Path | None) -> Subject:
    """A model to analyse; what cannot be analysed is refused before anything is asked of it."""
    model = transformer_of(load(folder).float().to(choose_device(options.device)))
    described = describe(model, folder)
    if options.layer is not None:
        chosen_layer(model, options.layer)
    chosen_heads(options.head, model.config.n_heads)
    if options.at is not None:
        chosen_place(options.at)
    return Subject(model, described)


def _draw(model: Transformer, options: Options, *, answered: bool) -> Sample:
    return draw(
        model,
        open_store(options.data),
        module=options.module,
        split=options.split,
        count=options.count,
        seed=options.seed,
        answered=answered if options.answered is None else options.answered,
    )


def _roles(options: Options, out: Path) -> Outcome:
    subject = _load(options, options.model)
    sample = _draw(subject.model, options, answered=True)
    found = roles.analyse(
        subject.model,
        sample,
        layer=options.one_layer,
        head=options.head,
        clusters=options.clusters,
        vectors=options.vectors,
        seed=options.seed,
    )
    return Outcome(found.meaning, roles.save(found, subject.context(sample), out))


def _attention(options: Options, out: Path) -> Outcome:
    subject = _load(options, options.model)
    sample = _draw(subject.model, options, answered=True)
    found = attention_maps.analyse(
        subject.model,
        sample,
        where=options.where,
        layer=options.one_layer,
        head=options.head,
        relation=options.relation,
        shown=options.questions or attention_maps.SHOWN,
        seed=options.seed,
    )
    return Outcome(found.meaning, attention_maps.save(found, subject.context(sample), out))


def _information(options: Options, out: Path) -> Outcome:
    folders = [options.model] if options.against is None else [options.model, options.against]
    subjects = [_load(options, folder) for folder in folders]
    sample = _draw(subjects[0].model, options, answered=False)
    found = [
        information.analyse(one.model, sample, layer=options.one_layer, seed=options.seed)
        for one in subjects
    ]
    contexts = [one.context(sample) for one in subjects]
    beside = list(zip(found[1:], contexts[1:], strict=True))
    lines = [
        f"{context.model['name']}: {line}" if beside else line
        for one, context in zip(found, contexts, strict=True)
        for line in one.meaning
    ]
    return Outcome(lines, information.save(found[0], contexts[0], out, beside))


def _binding(options: Options, out: Path) -> Outcome:
    """All of it is found before any of it is written: what fails, fails before."""
    subject = _load(options, options.model)
    operated = _surgery(subject.model, options)
    found = binding_problem.analyse(
        subject.model,
        layer=options.one_layer,
        count=min(options.count, MOST_FRACTIONS),
        seed=options.seed,
    )
    files = binding_problem.save(found, subject.context(found.sample), out)
    if isinstance(operated, str):
        return Outcome([*found.meaning, operated], files)
    sample, changed = operated
    files += surgery.save(changed, subject.context(sample), out)
    return Outcome([*found.meaning, *changed.meaning], files)


def _surgery(model: Transformer, options: Options) -> tuple[Sample, Surgery] | str:
    """Role surgery, or why there is none."""
    if model.config.binding == "none":
        return "No surgery: this model has no roles."
    try:
        sample = _draw(model, options, answered=True)
    except NoneAnsweredError as error:
        return f"No surgery: {error}."
    found = surgery.analyse(
        model,
        sample,
        layer=options.one_layer,
        heads=None if options.head is None else [options.head],
        positions=None if options.at is None else chosen_positions(sample.questions, options.at),
        place=options.at,
        n_clusters=options.clusters,
        seed=options.seed,
    )
    return sample, found


def _tensor_product(options: Options, out: Path) -> Outcome:
    subject = _load(options, options.model)
    sample = _draw(subject.model, options, answered=False)
    found = tensor_product.analyse(
        subject.model,
        sample,
        where=options.where,
        layer=options.layer,
        seed=options.seed,
    )
    return Outcome(found.meaning, tensor_product.save(found, subject.context(sample), out))


ANALYSES: dict[str, Callable[[Options, Path], Outcome]] = {
    "roles": _roles,
    "attention": _attention,
    "information": _information,
    "binding": _binding,
    "tensor-product": _tensor_product,
}
