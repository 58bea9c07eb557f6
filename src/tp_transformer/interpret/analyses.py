"""The registry of analyses: `tpt interpret` and `tp_transformer.interpret` offer what it holds.

To add an analysis, write a module like `binding.py` with a function
`analyse(model, sample, options, seed)` that returns a `Result`, add the class of its options to
`options.py`, and register it below. Nothing here imports torch; the module of an analysis is
imported when the analysis is first called.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tp_transformer.interpret.core.options import AnalysisOptions
from tp_transformer.interpret.options import (
    AttentionOptions,
    BindingOptions,
    InformationOptions,
    InterchangeOptions,
    RolesOptions,
    SurgeryOptions,
    TensorProductOptions,
)
from tp_transformer.ranges import Device, PositiveInt, Seed32, check_fields
from tp_transformer.registry import Registry

if TYPE_CHECKING:
    from tp_transformer.interpret.core.result import Result
    from tp_transformer.interpret.core.sample import Sample
    from tp_transformer.model.checkpoint import AnyModel

Questions = Literal["any", "answered", "nested", "exchangeable"]


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

        checked = self.options(**options)
        analyse = import_module(self.module).analyse
        result: Result = analyse(model, Sample.of(questions, model), checked, seed)
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


ANALYSES: Registry[Analysis] = Registry("analysis", "analyses")


def register_analysis(
    name: str,
    options: type[AnalysisOptions],
    questions: Questions = "any",
    module: str | None = None,
) -> None:
    """Register an analysis.

    Its function `analyse` is in `module`, by default that of its options, which is imported only
    when the analysis is called.
    """
    ANALYSES.register(name)(
        Analysis(options=options, module=module or options.__module__, questions=questions)
    )


_PACKAGE = __name__.rpartition(".")[0]
register_analysis("roles", RolesOptions, "answered", f"{_PACKAGE}.roles.analysis")
register_analysis("attention", AttentionOptions, "answered", f"{_PACKAGE}.attention.analysis")
register_analysis("information", InformationOptions, module=f"{_PACKAGE}.information")
register_analysis("binding", BindingOptions, "nested", f"{_PACKAGE}.binding")
register_analysis("interchange", InterchangeOptions, "exchangeable", f"{_PACKAGE}.interchange")
register_analysis("surgery", SurgeryOptions, "answered", f"{_PACKAGE}.surgery")
register_analysis("tensor-product", TensorProductOptions, module=f"{_PACKAGE}.tensor_product")
