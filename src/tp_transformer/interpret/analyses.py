"""The registry of analyses: `tpt interpret` and `tp_transformer.interpret` offer what it holds.

To add an analysis, write a folder like `roles/` with an options class and a function
`analyse(model, sample, options, seed)` that returns a `Result`, and register it below. Nothing here
imports torch; the module of an analysis is imported when the analysis is first called.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tp_transformer.foundation.ranges import Device, PositiveInt, Seed32, check_fields
from tp_transformer.foundation.registry import Registry
from tp_transformer.interpret.attention.options import AttentionOptions
from tp_transformer.interpret.binding.options import BindingOptions
from tp_transformer.interpret.core.options import AnalysisOptions
from tp_transformer.interpret.information.options import InformationOptions
from tp_transformer.interpret.interchange.options import InterchangeOptions
from tp_transformer.interpret.roles.options import RolesOptions
from tp_transformer.interpret.surgery.options import SurgeryOptions
from tp_transformer.interpret.tensor_product.options import TensorProductOptions

if TYPE_CHECKING:
    from tp_transformer.interpret.core.result import Result
    from tp_transformer.interpret.core.sample import Sample
    from tp_transformer.model.family import AnyModel

Questions = Literal["any", "answered", "nested", "exchangeable"]


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """An analysis, which is called as a function of a model and questions.

    Attributes:
        options: the class of its options; the first line of its docstring describes the analysis
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
        analyse = import_module(self.module).analyse
        result: Result = analyse(model, Sample.of(questions, model), chosen, seed)
        return result

    @property
    def needs_store(self) -> bool:
        """Whether its questions come from a store; nested fractions do not."""
        return self.questions in ("any", "answered")

    @property
    def help(self) -> str:
        """What the analysis does, in one line."""
        return (self.options.__doc__ or "").partition("\n")[0].rstrip(".")


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
    name: str, options: type[AnalysisOptions], questions: Questions = "any"
) -> None:
    """Register an analysis.

    Its function `analyse` is in the module of its options; if that module is called `options`, in
    the module `analysis` beside it, which is imported only when the analysis is called.
    """
    package, _, module = options.__module__.rpartition(".")
    found = f"{package}.analysis" if module == "options" else options.__module__
    ANALYSES.register(name)(Analysis(options=options, module=found, questions=questions))


register_analysis("roles", RolesOptions, questions="answered")
register_analysis("attention", AttentionOptions, questions="answered")
register_analysis("information", InformationOptions)
register_analysis("binding", BindingOptions, questions="nested")
register_analysis("interchange", InterchangeOptions, questions="exchangeable")
register_analysis("surgery", SurgeryOptions, questions="answered")
register_analysis("tensor-product", TensorProductOptions)
