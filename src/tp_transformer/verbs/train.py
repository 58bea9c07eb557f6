"""Verbs that train models and plot the errors of runs."""

import json
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from cyclopts import Parameter

from tp_transformer.errors import SettingsError
from tp_transformer.ranges import Device, PositiveInt, Seed
from tp_transformer.runtime.memory import keep_freed_memory
from tp_transformer.runtime.run_folder import CONFIG, seed_folder, seed_runs
from tp_transformer.verbs.verb import TextOptions, Verb, documented, option_texts, register_verb

if TYPE_CHECKING:
    from tp_transformer.training.config import RunConfig


@register_verb("train")
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
    print_config: Annotated[bool, Parameter(name="--print_config")] = False
    settings: Any = None  # those of a run, `--section.field`

    @classmethod
    def complete(cls) -> "type[Train]":
        """Return the verb with the settings of a run."""
        return _settings().added_to(cls, "settings")

    def __call__(self) -> None:
        import torch

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
        from tp_transformer.report.panel import display
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
        if outcomes[-1].is_first:
            print(*lines, sep="\n")
        if outcomes[-1].signal is not None:
            raise SystemExit(128 + outcomes[-1].signal)

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

        changed = option_texts(self.settings)
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


@register_verb("curve")
class DrawCurve(Verb):
    """Plot the validation error of runs.

    Attributes:
        runs: the runs' folders
        out: a folder for the figure
    """

    runs: tuple[Path, ...] = field(kw_only=False)
    out: Path

    def __call__(self) -> None:
        from tp_transformer.report.charts import read_curves, save_curves

        curves = [curve for run in self.runs for curve in read_curves(run)]
        files = save_curves(curves, self.out)
        print(*(curve.line() for curve in curves), sep="\n")
        print(f"figures: {', '.join(map(str, files))}")


def _settings() -> TextOptions:
    """Return the settings of a run as options, whose values `run_values` parses."""
    from tp_transformer.model.base import ARCHITECTURES
    from tp_transformer.model.binding import BINDINGS, options_of
    from tp_transformer.model.transformer import Transformer
    from tp_transformer.training.config import section_kinds

    options = TextOptions()
    names = {model.config_type: name for name, model in ARCHITECTURES.items()}
    usual = Transformer.architecture()
    options.add("model.architecture", "the kind of model", usual, sorted(ARCHITECTURES))
    for section, kinds in section_kinds().items():
        for kind in kinds:
            texts, hints = documented(kind), get_type_hints(kind)
            label = f"[{names[kind]}] " if kind in names else ""
            bases = [base for base in kind.__mro__[1:] if base in names]
            for setting in fields(kind):
                if any(setting.name in get_type_hints(base) for base in bases):
                    continue  # described with that architecture
                hint = hints[setting.name]
                options.add(
                    f"{section}.{setting.name}",
                    label + texts.get(setting.name, "a setting"),
                    setting.default,
                    get_args(hint) if get_origin(hint) is Literal else (),
                )
    for binding, binding_class in BINDINGS.items():
        texts = documented(binding_class)
        for name, option in options_of(binding_class).items():
            text = f"[{usual}] of the {binding} binding: {texts.get(name, 'an option')}"
            default = MISSING if option.default is option.empty else option.default
            options.add(f"model.{name}", text, default)
    return options
