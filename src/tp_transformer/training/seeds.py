"""Runs that differ only in their seed, one after the other, each in its own folder."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tp_transformer import settings
from tp_transformer.data.store import Store
from tp_transformer.errors import FolderError
from tp_transformer.runtime.provenance import command_line
from tp_transformer.runtime.ranks import open_ranks, unchanged_random_state
from tp_transformer.runtime.run_folder import CONFIG, ORIGIN, read_origin, seed_folder, seed_runs
from tp_transformer.training.claim import Request
from tp_transformer.training.config import RunConfig, run_config, section_kinds
from tp_transformer.training.display import Display, Lines
from tp_transformer.training.loggers import AnyLogger, names_in
from tp_transformer.training.run import Outcome, train_on


def train_seeds(
    config: RunConfig | str | Path | None,
    data: Store | str | Path | None,
    run: str | Path,
    seeds: Sequence[int],
    *,
    device: str = "auto",
    compile: bool = False,  # noqa: A002, as torch calls it
    init_from: str | Path | None = None,
    loggers: Sequence[AnyLogger] = (),
    display: Callable[[str], Display] = Lines,
) -> list[Outcome]:
    """Train a model with each seed, in RUN/seed-0 and so on, or resume these runs.

    The arguments are those of `train`. The runs that exist give what is omitted: the settings, the
    data, the initial model and the loggers of further seeds, and the seeds, if none are given.
    """
    folder = Path(run)
    if (folder / ORIGIN).is_file():
        raise FolderError(f"{folder} is the run of one seed; choose a new folder for several seeds")
    given = Request.of(config, data, folder, init_from, names_in(loggers))
    begun = seed_runs(folder)
    requests = [_of_seed(given, begun, seed) for seed in dict.fromkeys(seeds or begun)]
    own = [logger for logger in loggers if not isinstance(logger, str)]
    outcomes: list[Outcome] = []
    with open_ranks(device) as ranks, unchanged_random_state(ranks.device):
        for request in requests:
            outcomes.append(train_on(ranks, request, compile, own, display))
            if outcomes[-1].signal is not None:
                break
    return outcomes


def _of_seed(given: Request, begun: dict[int, Path], seed: int) -> Request:
    """Return the request for the run of a seed; a new run has the settings of existing ones."""
    if seed not in begun and begun:
        sibling = begun[min(begun)]
        origin = read_origin(sibling)
        recorded = run_config(settings.run_values(sibling / CONFIG, {}, section_kinds()))
        given = replace(
            given,
            config=given.config or recorded,
            data=given.data or origin["data"],
            init_from=given.init_from or origin.get("init_from", {}).get("folder"),
            loggers=given.loggers or origin.get("loggers", []),
        )
    config = given.config
    if config is not None:
        config = replace(config, training=replace(config.training, seed=seed))
    return replace(given, run=seed_folder(given.run, seed), config=config)


def seed_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the results of the runs of several seeds and the next command, as lines to print."""
    lines = [line for outcome in outcomes for line in outcome.result()]
    if outcomes[-1].signal is not None:
        return lines
    folder, data = outcomes[0].run.parent, read_origin(outcomes[0].run)["data"]
    out = f"{folder.name}.json"
    return [*lines, f"next: {command_line('evaluate', model=folder, data=data, out=out)}"]
