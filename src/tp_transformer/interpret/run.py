"""One analysis from a model folder and a store to its files: `tpt interpret`."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tp_transformer.data.mathematics.modules import INTERPOLATE
from tp_transformer.data.mathematics.produce import Order, produce
from tp_transformer.data.store import open_store
from tp_transformer.errors import SettingsError, TextError, UserError
from tp_transformer.interpret.analyses import (
    ANALYSES,
    Analysis,
    AnalysisOptions,
    AnalysisRequest,
    StoreRequest,
    checked_model,
)
from tp_transformer.interpret.core.result import Result
from tp_transformer.interpret.core.sample import PAPERS_MODULE, Sample, draw, drawn_sample
from tp_transformer.interpret.interchange import exchangeable_sample
from tp_transformer.model import bundled
from tp_transformer.model.checkpoint import describe, load
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.processes import workers
from tp_transformer.runtime.provenance import command_line
from tp_transformer.runtime.ranks import choose_device

TRIES = 16  # generated questions for each one that the model must answer correctly


def interpret(
    name: str,
    request: AnalysisRequest,
    options: AnalysisOptions,
    out: str | Path,
    *,
    caption: bool = True,
) -> tuple[Result, list[Path]]:
    """Analyse a model, write numbers and figures into a folder; return the result and the files.

    Figures have a caption unless `caption` is false.
    """
    file = next((path for path in (Path(out), *Path(out).parents) if path.is_file()), None)
    if file is not None:
        raise SettingsError(f"{file} is a file; name a folder for the analysis")
    analysis = ANALYSES[name]
    loaded = load(request.model).float().to(choose_device(request.device))
    model = checked_model(loaded, options)
    # Now, because training may replace the weights of a run.
    described = describe(model, request.model or bundled.default())
    sample = _sample(analysis, model, request)
    result = analysis(model, sample, seed=request.seed, **vars(options))
    output = {"out": out, "caption": None if caption else False}
    command = command_line(f"interpret {name}", request, options, **output)
    environment = {**result.context.environment, "command": command}
    context = replace(result.context, model=described, environment=environment)
    result = replace(result, context=context)
    return result, result.save(out, caption=caption)


def _sample(analysis: Analysis, model: Transformer, request: AnalysisRequest) -> Sample:
    if not analysis.needs_store:
        sample = drawn_sample(request.count, request.seed)
        try:
            model.vocabulary.encode(sample.questions, "question")
        except TextError as error:
            raise UserError(f"this analysis asks nested fractions; {error}") from error
        if analysis.questions == "exchangeable":
            return exchangeable_sample(model, request.count, request.seed)
        return sample
    assert isinstance(request, StoreRequest)  # noqa: S101, for the type checker
    is_answered = analysis.questions == "answered" if request.answered is None else request.answered
    drawn = partial(draw, model, count=request.count, seed=request.seed, answered=is_answered)
    if request.data is not None:
        store = open_store(request.data)
        return drawn(store, module=request.module, split=request.split)
    order = Order(
        modules=(request.module or PAPERS_MODULE,),
        splits=(request.split or INTERPOLATE,),
        count=TRIES * request.count if is_answered else request.count,
        seed=request.seed,
    )
    with TemporaryDirectory() as folder:
        return drawn(produce(order, Path(folder) / "questions", workers(None)))
