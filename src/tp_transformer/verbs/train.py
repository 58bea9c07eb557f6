"""Verbs that train models and plot the errors of runs."""

import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from jsonargparse import Namespace

from tp_transformer.errors import SettingsError
from tp_transformer.ranges import Device, PositiveInt, Seed
from tp_transformer.runtime.run_folder import CONFIG, seed_folder, seed_runs
from tp_transformer.verbs.verb import Arguments, Verb, add_later, documented, yaml_default

if TYPE_CHECKING:
    from tp_transformer.training.config import RunConfig
    from tp_transformer.training.run import Outcome


@dataclass(frozen=True, kw_only=True)
class Train(Verb):
    """Train a model, or resume a run.

    Attributes:
        run: the run's folder (required, except for --print_config)
        config: the name of a preset or a YAML file, which the settings below override; not needed
            to resume a run
        data: the store; not needed to resume a run
        budget: maximum training time, such as 90s, 45min, 2h or 1d12h; short for --training.budget
        modules: train on these modules only; `*` matches any characters; short for
            --data.modules
        device: the device to train on
        compile: compile the model with torch.compile
        init_from: the folder of a model or a run, whose weights a new run starts from
        log: loggers for the metrics, which are recorded and continue when the run is resumed
        threads: the number of threads; by default one per core
        seeds: train once with each of these seeds, in the folders seed-0, seed-1, … of the run's
            folder
        dry_run: print the parameters, steps, time, memory and disk space of the run, measured for
            a few seconds, and write nothing
        print_config: print all settings as YAML, which --config reads, and exit
    """

    resumes = True
    run: Path | None = None
    config: str | None = None
    data: Path | None = None
    budget: str | None = None
    modules: tuple[str, ...] | None = None
    device: Device = "auto"
    compile: bool = False
    init_from: Path | None = None
    log: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    threads: PositiveInt | None = None
    seeds: tuple[Seed, ...] = ()
    dry_run: bool = False
    print_config: bool = field(default=False, metadata={"flag": "--print_config"})
    settings: Namespace = field(default_factory=Namespace, metadata={"flag": None})

    @classmethod
    def arguments(cls) -> Arguments:
        """Return the options, and the settings of a run as `--section.field`."""
        return {**super().arguments(), **_settings()}

    def __call__(self) -> None:
        import torch

        from tp_transformer.runtime.memory import keep_freed_memory
        from tp_transformer.settings import dump
        from tp_transformer.training.config import config_values

        config = self.resolved()
        if self.print_config:
            if config is None:
                raise SettingsError("name the settings to print: --config NAME_OR_FILE")
            print(dump(config_values(config)), end="")
            return
        if self.run is None:
            raise SettingsError("name the run's folder: --run DIR")
        keep_freed_memory()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if self.dry_run:
            self._plan(config, self.run)
        else:
            self._train(config, self.run)

    def _train(self, config: "RunConfig | None", run: Path) -> None:
        from tp_transformer.show.panel import display
        from tp_transformer.training.run import seed_lines, train, train_seeds

        options: dict[str, Any] = {
            "device": self.device,
            "compile": self.compile,
            "init_from": self.init_from,
            "loggers": self.log,
            "display": display,
        }
        if self.seeds or seed_runs(run):
            outcomes = train_seeds(config, self.data, run, self.seeds, **options)
            lines = seed_lines(outcomes)
        else:
            outcomes = [train(config, self.data, run, **options)]
            lines = outcomes[0].lines()
        _end(outcomes[-1], lines)

    def _plan(self, config: "RunConfig | None", run: Path) -> None:
        from tp_transformer.training.plan import plan_run

        seeds = self.seeds or tuple(seed_runs(run))
        folder = seed_folder(run, seeds[0]) if seeds else run
        plan = plan_run(config, self.data, folder, device=self.device, init_from=self.init_from)
        lines = plan.lines()
        if len(seeds) > 1:
            lines.append(f"seeds       {len(seeds)}: each takes this time and disk space")
        print(*lines, sep="\n")

    def resolved(self) -> "RunConfig | None":
        """Return the given settings; None if those of the existing run are used."""
        from tp_transformer.settings import run_values
        from tp_transformer.training.config import run_config, section_kinds

        changed = dict(self.settings.items())
        if self.budget is not None:
            changed["training.budget"] = json.dumps(self.budget)
        if self.modules is not None:
            changed["data.modules"] = json.dumps(self.modules)
        earlier = self._recorded()
        source = self.config or (earlier if changed or self.print_config else None)
        return None if source is None else run_config(run_values(source, changed, section_kinds()))

    def _recorded(self) -> Path | None:
        """Return the file of recorded settings of the run, or of the run of its first seed."""
        if self.run is None:
            return None
        folders = [self.run, *seed_runs(self.run).values()]
        return next((run / CONFIG for run in folders if (run / CONFIG).is_file()), None)


@dataclass(frozen=True, kw_only=True)
class Retrain(Verb):
    """Repeat the training of a bundled model: generate its questions and train its runs.

    Attributes:
        model: the name of a bundled model, or the folder of a run
        out: a folder for all of it; the same command resumes what is missing there
        data: a store to use for all runs, in place of generated questions
        device: the device to train on
        threads: the number of threads; by default one per core
        dry_run: print the steps and the recorded core-hours of the runs, and write nothing
    """

    resumes = True
    model: Path = field(metadata={"flag": "model"})
    out: Path
    data: Path | None = None
    device: Device = "auto"
    threads: PositiveInt | None = None
    dry_run: bool = False

    def __call__(self) -> None:
        import torch

        from tp_transformer.runtime.memory import keep_freed_memory
        from tp_transformer.show.panel import display
        from tp_transformer.study.retrain import plan_retraining, retrain

        if self.dry_run:
            planned = plan_retraining(self.model, self.out, self.data)
            print(*(one.line() for one in planned), sep="\n")
            return
        keep_freed_memory()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        outcome = retrain(self.model, self.out, data=self.data, device=self.device, display=display)
        _end(outcome, outcome.lines())


@dataclass(frozen=True, kw_only=True)
class DrawCurve(Verb):
    """Plot the validation error of runs.

    Attributes:
        runs: the runs' folders
        out: a folder for the figure
    """

    runs: tuple[Path, ...] = field(metadata={"flag": "runs"})
    out: Path

    def __call__(self) -> None:
        from tp_transformer.show.curve import read_curves, save_curves

        curves = [curve for run in self.runs for curve in read_curves(run)]
        files = save_curves(curves, self.out)
        print(*(curve.line() for curve in curves), sep="\n")
        print(f"figures: {', '.join(map(str, files))}")


def _end(outcome: "Outcome", lines: Sequence[str]) -> None:
    """Print the result on the first rank, and exit if the last run was interrupted."""
    if outcome.is_first:
        print(*lines, sep="\n")
    if outcome.signal is not None:
        raise SystemExit(128 + outcome.signal)


def _settings() -> Arguments:
    """Return the settings of a run as options, whose values `run_values` parses.

    A setting of several architectures is one option, with a description for each of them.
    """
    from tp_transformer.model.base import ARCHITECTURES
    from tp_transformer.model.binding import BINDINGS, binding_options
    from tp_transformer.model.transformer import Transformer
    from tp_transformer.training.config import section_kinds

    arguments: Arguments = {}

    def add(section: str, name: str, text: str, choices: Sequence[str] = ()) -> None:
        flag, key = f"--{section}.{name}", f"settings.{section}.{name}"
        add_later(arguments, f"settings of {section}", flag, key, text, choices)

    names = {model.config_type: name for name, model in ARCHITECTURES.items()}
    usual = Transformer.architecture()
    add("model", "architecture", f"the kind of model (default: {usual})", sorted(ARCHITECTURES))
    for section, kinds in section_kinds().items():
        for kind in kinds:
            hints, label = get_type_hints(kind), f"[{names[kind]}] " if kind in names else ""
            for name, text in _described_fields(kind, names):
                is_literal = get_origin(hints[name]) is Literal
                add(section, name, label + text, get_args(hints[name]) if is_literal else ())
    for binding, made in BINDINGS.items():
        for name, option in binding_options(binding).items():
            text = documented(made).get(name, "an option")
            default = MISSING if option.default is option.empty else option.default
            text = f"[{usual}] of the {binding} binding: {text}{yaml_default(default)}"
            add("model", name, text)
    return arguments


def _described_fields(kind: type[Any], described: Container[type]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass and their help, except for those of bases in `described`."""
    texts = documented(kind)
    bases = [base for base in kind.__mro__[1:] if base in described]
    for each in fields(kind):
        if not any(each.name in get_type_hints(base) for base in bases):
            yield each.name, texts.get(each.name, "a setting") + yaml_default(each.default)
