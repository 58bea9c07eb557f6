"""The analyses: their options, which are those of their commands, and the registry of them.

`tpt interpret` and `tp_transformer.interpret` offer what `ANALYSES` holds. To add an analysis,
write a module with a class of options that is registered, as below, and a function
`analyse(model, sample, options, seed)` that returns a `Result`. Nothing here imports torch: the
function of an analysis of this package has a module of its own, which is imported when the analysis
is first called.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

from tp_transformer.errors import SettingsError, UserError
from tp_transformer.interpret.core.relations import RELATIONS
from tp_transformer.interpret.core.structure import PLACES
from tp_transformer.ranges import Count, Device, Layer, PositiveInt, Seed32, check_fields
from tp_transformer.registry import Registry
from tp_transformer.settings import nearest

if TYPE_CHECKING:
    from tp_transformer.interpret.core.result import Result
    from tp_transformer.interpret.core.sample import Sample
    from tp_transformer.model.checkpoint import AnyModel
    from tp_transformer.model.config import TransformerConfig
    from tp_transformer.model.transformer import Transformer

Questions = Literal["any", "answered", "nested", "exchangeable"]
Where = Literal["encoder", "decoder", "cross"]
Choices = Mapping[str, tuple[str, Collection[str]]]  # by field: what it names, and the names


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """Base class for the options of an analysis.

    Attributes:
        layer: index of the layer; negative indices count from the end
    """

    needs_roles: ClassVar[bool] = False
    needs_characters: ClassVar[bool] = False  # of expressions: a model of words lacks them
    choices: ClassVar[Choices] = {}
    layer: Layer | None = -1

    def __post_init__(self) -> None:
        check_fields(self)
        for field, (noun, names) in self.choices.items():
            if (name := getattr(self, field)) is not None:
                require_known(noun, name, names)

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if a model of this configuration lacks what the analysis needs."""
        if self.needs_roles and not config.d_role:
            raise UserError("this analysis needs roles, which the attention of this model lacks")
        layer_index(self.layer, config.n_layers)


@dataclass(frozen=True, kw_only=True)
class HeadOptions(AnalysisOptions):
    """Options of an analysis that can be restricted to one head.

    Attributes:
        head: index of one head, in place of all heads
    """

    head: Count | None = None

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if a model of this configuration lacks what the analysis needs."""
        super().check(config)
        head_indices(self.head, config.n_heads)


def layer_index(layer: int | None, n_layers: int) -> int:
    """Return the index of a layer from 0; the last layer by default."""
    layer = -1 if layer is None else layer
    if not -n_layers <= layer < n_layers:
        raise SettingsError(
            f"the model has layers 0 to {n_layers - 1}, or -1 for the last, but no layer {layer}"
        )
    return layer % n_layers


def layer_indices(layer: int | None, n_layers: int) -> list[int]:
    """Return the index of one layer, or of every layer."""
    return list(range(n_layers)) if layer is None else [layer_index(layer, n_layers)]


def head_indices(head: int | None, n_heads: int) -> list[int]:
    """Return one head, or every head."""
    if head is not None and not 0 <= head < n_heads:
        raise SettingsError(f"the model has heads 0 to {n_heads - 1}, not {head}")
    return list(range(n_heads)) if head is None else [head]


def require_known(noun: str, name: str, names: Collection[str]) -> None:
    """Raise an error that lists the names if a name is not one of them."""
    if name not in names:
        raise SettingsError(
            f"there is no {noun} {name!r}{nearest(name, names)}; choose one of: {'; '.join(names)}"
        )


def checked_model(model: "AnyModel", options: AnalysisOptions) -> "Transformer":
    """Return the model if it can be analysed with these options; an LSTM cannot."""
    from tp_transformer.model.transformer import Transformer

    if not isinstance(model, Transformer):
        raise UserError("this analysis looks at attention, which an LSTM does not have")
    if options.needs_characters and model.vocabulary.is_words:
        raise UserError(
            "this analysis looks at the characters of expressions, but the tokens of this model "
            "are words"
        )
    options.check(model.config)
    return model


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """An analysis, which is called as a function of a model and questions.

    Attributes:
        options: the class of its options; the first line of its docstring describes the analysis,
            a paragraph below it tells readers of a report what they see
        module: the name of the module that has its function `analyse`
        questions: what `tpt interpret` gives it by default: "any" questions of a store, those that
            the model has "answered" correctly, "nested" fractions, or "exchangeable" ones, which
            it answers before and after each exchange of two numbers
    """

    options: type[AnalysisOptions]
    module: str
    questions: Questions = "any"

    def __call__(
        self,
        model: "AnyModel",
        questions: "Sample | Sequence[str]",
        /,
        *,
        seed: int = 0,
        **options: Any,
    ) -> "Result":
        """Analyse a model.

        Args:
            model: a Transformer or TP-Transformer
            questions: a sample, or texts, which are paired with the model's own answers
            seed: seed of everything that is random in the analysis
            options: fields of the options class
        """
        from tp_transformer.interpret.core.sample import Sample

        chosen = self.options(**options)
        transformer = checked_model(model, chosen)
        analyse = import_module(self.module).analyse
        result: Result = analyse(transformer, Sample.of(questions, transformer), chosen, seed)
        return result

    @property
    def needs_store(self) -> bool:
        """Whether its questions come from a store; nested fractions do not."""
        return self.questions in ("any", "answered")

    @property
    def help(self) -> str:
        """What the analysis does, in one line."""
        return (self.options.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def about(self) -> str:
        """What a reader of its results should know: the paragraph after the first line, if any."""
        text, _, _ = cleandoc(self.options.__doc__ or "").partition("\n\nAttributes:")
        return " ".join(text.split("\n\n")[-1].split())


@dataclass(frozen=True, kw_only=True)
class AnalysisRequest:
    """What `tpt interpret` takes for every analysis.

    Attributes:
        model: the folder of a model or a run, or the name of a bundled model; the bundled
            TP-Transformer by default
        count: the number of questions
        seed: seed of the choice of questions and of the analysis
        device: the device that the model runs on
    """

    model: Path | None = None
    count: PositiveInt = 128
    seed: Seed32 = 0
    device: Device = "auto"

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class StoreRequest(AnalysisRequest):
    """What `tpt interpret` takes for an analysis of questions of a store.

    Attributes:
        data: the store that the questions come from; by default, questions of the Mathematics
            Dataset are generated
        module: the module of the questions; by default arithmetic__mixed, as in the paper, or the
            only module of the split
        split: the split of the questions; by default the first test split
        answered: true for questions that the model answers correctly, false for any questions; by
            default true for roles, attention and surgery
    """

    data: Path | None = None
    module: str | None = None
    split: str | None = None
    answered: bool | None = None


O = TypeVar("O", bound=AnalysisOptions)  # noqa: E741
ANALYSES: Registry[Analysis] = Registry("analysis", "analyses")


def register_analysis(
    name: str, questions: Questions = "any", module: str | None = None
) -> Callable[[type[O]], type[O]]:
    """Return a decorator that registers an analysis with the class of its options.

    Args:
        name: the name of the command
        questions: the questions that the command chooses, see `Analysis`
        module: the module that has its function `analyse`; by default that of the class
    """

    def register(options: type[O]) -> type[O]:
        analysis = Analysis(
            options=options, module=module or options.__module__, questions=questions
        )
        ANALYSES.register(name)(analysis)
        return options

    return register


_PACKAGE = __name__.rpartition(".")[0]


@register_analysis("roles", "answered", f"{_PACKAGE}.roles.analysis")
@dataclass(frozen=True, kw_only=True)
class RolesOptions(HeadOptions):
    """Cluster role vectors, and score the structure of expressions in them.

    The role vectors of each head are clustered, and a cluster is named by what its positions have
    in common. Linear probes measure how much of the structure of the expression is in the roles,
    compared with untrained models and with the text alone.

    Attributes:
        clusters: the number of clusters of each head
        vectors: the vectors to cluster; by default the roles, or the values of a model without
            roles
    """

    needs_characters = True
    clusters: PositiveInt = 20
    vectors: Literal["role", "value"] | None = None


@register_analysis("attention", "answered", f"{_PACKAGE}.attention.analysis")
@dataclass(frozen=True, kw_only=True)
class AttentionOptions(HeadOptions):
    """Plot attention maps, and rank heads by the relations that they follow.

    Attention maps, as in figure 3 of the paper, and the heads that follow a relation, such as that
    of an argument to its operator, beyond baselines that do not know the structure.

    Attributes:
        where: the attention to look at
        relation: search for one relation only
        shown: the number of questions of the sample whose maps are plotted
        questions: plot the maps of these questions instead
    """

    choices: ClassVar[Choices] = {
        "where": ("attention", get_args(Where)),
        "relation": ("relation", RELATIONS),
    }
    where: Where = "encoder"
    relation: str | None = None
    shown: Count = 3  # as in the paper's figure
    questions: Sequence[str] | None = None


@register_analysis("information", module=f"{_PACKAGE}.information")
@dataclass(frozen=True, kw_only=True)
class InformationOptions(AnalysisOptions):
    """Reconstruct hidden states from the value vector of each head.

    How well an affine map reconstructs a hidden state from the value vector of one head: by the
    protocol of section 6.1 of the paper, and on held-out questions.

    Attributes:
        against: the folder of a second model, which is plotted below the first
        samples: the number of samples in the paper's protocol
    """

    against: Path | None = None
    samples: PositiveInt = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 3:
            raise SettingsError(
                f"the paper's protocol needs at least 3 samples, not {self.samples}"
            )


@register_analysis("binding", "nested", f"{_PACKAGE}.binding")
@dataclass(frozen=True, kw_only=True)
class BindingOptions(AnalysisOptions):
    """Find the structures that attention confuses, by exchanging numbers in nested fractions.

    Whether attention confuses (a/b)/(c/d) with the same numbers in other places: in the simplified
    network of section 6.2 of the paper, and in the model.

    Attributes:
        draws: the number of simplified networks of each size
    """

    needs_characters = True
    draws: PositiveInt = 50


@register_analysis("interchange", "exchangeable", f"{_PACKAGE}.interchange")
@dataclass(frozen=True, kw_only=True)
class InterchangeOptions(HeadOptions):
    """Exchange the roles of two numbers in nested fractions: whether the answer follows them.

    Two of the four numbers in (a/b)/(c/d) get the roles that they have at the place of the other.
    If roles encode where a number stands, the model then answers the question with the numbers
    exchanged.

    Attributes:
        layer: index of one layer, in place of each layer; negative indices count from the end. All
            layers at once are always included
    """

    needs_roles = True
    needs_characters = True
    layer: Layer | None = None


@register_analysis("surgery", "answered", f"{_PACKAGE}.surgery")
@dataclass(frozen=True, kw_only=True)
class SurgeryOptions(HeadOptions):
    """Remove or replace role vectors, and compare the answers before and after.

    How many answers change if roles are zeroed, swapped, or replaced by another role or by the
    centroid of their cluster, compared with a control of each operation.

    Attributes:
        at: change roles only at numbers, numerators, denominators, first arguments, second
            arguments or operators; or at the digit asked for, coefficients, exponents or items of a
            list
        clusters: the number of clusters of each head
    """

    needs_roles = True
    needs_characters = True
    choices: ClassVar[Choices] = {"at": ("place", PLACES)}
    at: str | None = None
    clusters: PositiveInt = 20


@register_analysis("tensor-product", module=f"{_PACKAGE}.tensor_product")
@dataclass(frozen=True, kw_only=True)
class TensorProductOptions(AnalysisOptions):
    """Measure how much of the tensor product of fillers and roles the Hadamard product keeps.

    The share of the variance of the tensor product of filler and role that the Hadamard product
    keeps (section 7 of the paper), compared with other projections.

    Attributes:
        layer: index of one layer, in place of all layers; negative indices count from the end
        where: the attention to look at
    """

    needs_roles = True
    choices: ClassVar[Choices] = {"where": ("attention", get_args(Where))}
    layer: Layer | None = None
    where: Where = "encoder"

    def check(self, config: "TransformerConfig") -> None:
        """Raise an error if a model of this configuration lacks what the analysis needs."""
        super().check(config)
        binding = config.weightless_binding()
        if binding.binds_values or binding.d_role != binding.d_head:
            raise UserError(
                "this analysis needs a role as long as the filler that it is bound to, which the "
                f"{config.binding} binding of this model lacks"
            )
