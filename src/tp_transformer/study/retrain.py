"""`tpt retrain`: repeats the training of a model by the record of its runs.

OUT/data-1/    the questions of the first run; a later run with other questions has data-2, …
OUT/run-1/     the first run; each further run starts from the best model of the one before

What is complete is kept, so that the same command resumes after an interruption.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tp_transformer.data.mathematics.produce import Order
from tp_transformer.data.store import Store, open_store
from tp_transformer.errors import FolderError, StoreError
from tp_transformer.model import bundled
from tp_transformer.runtime.files import refuse_other_content
from tp_transformer.study.parts import generated
from tp_transformer.training.config import RunConfig, run_config
from tp_transformer.training.history import Stage, history_of
from tp_transformer.training.record import Display, Lines
from tp_transformer.training.run import Outcome, train


@dataclass(frozen=True, kw_only=True)
class RepeatedRun:
    """A run to repeat.

    Attributes:
        recorded: the record of the run
        config: the settings
        data: folder of the questions
        order: the questions to generate there; None if the store is given
        run: folder of the repetition
        init_from: the run before
    """

    recorded: Stage
    config: RunConfig
    data: Path
    order: Order | None
    run: Path
    init_from: Path | None

    def store(self) -> Store:
        """Return the questions, which are generated if they are missing."""
        return open_store(self.data) if self.order is None else generated(self.order, self.data)

    def line(self) -> str:
        """Describe the run."""
        training, seconds = self.config.training, self.recorded.core_seconds
        steps = "no limit of" if training.steps is None else f"{training.steps:,}"
        hours = "not recorded" if seconds is None else f"{seconds / 3600:.2f}"
        return (
            f"{self.run}: {steps} steps of {self.config.data.batch_size} samples from {self.data}; "
            f"core-hours of the recorded run: {hours}"
        )


def plan_retraining(
    model: str | Path, out: str | Path, data: str | Path | None = None
) -> list[RepeatedRun]:
    """Return the runs that led to a model, in their order; the arguments are those of `retrain`."""
    folder = bundled.find(model)
    history = history_of(folder)
    if history is None:
        names = ", ".join(bundled.names())
        raise FolderError(
            f"{folder} has no record of a training to repeat; name a run or a bundled model "
            f"({names or 'there is none'})"
        )
    if history.unknown_start is not None:
        raise FolderError(
            f"the training of {folder} cannot be repeated: it started from weights whose own "
            "training is not recorded"
        )
    orders = [None if data is not None else _order(stage) for stage in history.stages]
    different = list(dict.fromkeys(orders))
    planned: list[RepeatedRun] = []
    for number, (stage, order) in enumerate(zip(history.stages, orders, strict=True), 1):
        own_data = Path(out) / f"data-{1 + different.index(order)}"
        planned.append(
            RepeatedRun(
                recorded=stage,
                config=run_config(stage.settings),
                data=own_data if data is None else Path(data),
                order=order,
                run=Path(out) / f"run-{number}",
                init_from=planned[-1].run if planned else None,
            )
        )
    return planned


def retrain(
    model: str | Path,
    out: str | Path,
    *,
    data: str | Path | None = None,
    device: str = "auto",
    display: Callable[[str], Display] = Lines,
) -> Outcome:
    """Repeat the training of a model: generate its questions, then train its runs in their order.

    Returns the outcome of the last run, or of one that was interrupted.

    Args:
        model: the name of a bundled model, or the folder of a run
        out: the folder for all of it; the same call resumes what is missing there
        data: the store to use for all runs, in place of generated questions
        device: auto, cpu, cuda or mps
        display: makes the display of a run from a title; by default, lines on standard error
    """
    planned = plan_retraining(model, out, data)
    own = {path.name for one in planned for path in (one.data, one.run)}
    refuse_other_content(Path(out), "the training", is_begun=False, own=own)
    for one in planned:
        outcome = train(
            one.config,
            one.store(),
            one.run,
            device=device,
            init_from=one.init_from,
            display=display,
        )
        if outcome.signal is not None:
            break
    return outcome


def _order(stage: Stage) -> Order:
    """Return the questions of a run as they were generated."""
    if "source" not in stage.data:
        raise StoreError(
            f"the store of the run {stage.run} ({stage.data['name']}) was missing when its "
            "training was recorded; name a store with --data"
        )
    order = Order.of_source(stage.data["source"])
    if order is None:
        raise StoreError(
            f"the questions of the run {stage.run} were not generated as modules of the "
            "Mathematics Dataset; name a store with --data"
        )
    return order
