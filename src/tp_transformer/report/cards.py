"""Cards of models, for the package and for the Hugging Face Hub, and the list of models.

Every number of a card is computed from recorded facts.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tp_transformer import settings
from tp_transformer.data.mathematics.modules import SPLITS, TRAIN_SPLITS
from tp_transformer.data.mathematics.produce import Order
from tp_transformer.data.vocabulary import EOS, PAD, SOS
from tp_transformer.model import bundled
from tp_transformer.model.checkpoint import AnyModel, count_parameters, model_config
from tp_transformer.model.folder import CONFIG, VOCABULARY, WEIGHTS
from tp_transformer.model.recurrent import LSTMConfig
from tp_transformer.model.transformer import Transformer
from tp_transformer.report.comparison import pair_line
from tp_transformer.scoring.compare import pairs
from tp_transformer.scoring.published import TABLE_1
from tp_transformer.scoring.results import ModuleScore, Results, SplitScore
from tp_transformer.table import Table, markdown_table
from tp_transformer.training.history import History, Stage
from tp_transformer.training.record import duration, number, share

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

FAILED = 0.1  # the accuracy below which a module is listed among the limits
COUNTED = (0.9, 0.5)  # accuracies above which modules are counted
NOT_RECORDED = "not recorded"

Values = dict[str, Any]

HUB_USE = """## Use with transformers

```python
import tp_transformer.interop  # registers the model with transformers; no remote code is needed
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained(folder)  # this repository
tokenizer = AutoTokenizer.from_pretrained(folder)
questions = tokenizer(["What is 3 + 4?"], padding=True, return_tensors="pt")
tokenizer.batch_decode(model.generate(**questions), skip_special_tokens=True)
```
"""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a card is about: a model, its scores and its training."""

    name: str
    model: AnyModel
    results: Results
    history: History


def settings_file(number: int) -> str:
    """Return the name of the file with the settings of the first, second, … run of a model."""
    return f"training-{number}.yaml"


def model_card(facts: CardFacts, twin: CardFacts | None) -> str:
    """Return the card of a model; `twin` is the bundled model to compare it with."""
    parts = [
        [f"# {facts.name}", "", _summary(facts), "", *_averages(facts)],
        ["## Use", "", *_use(facts)],
        ["## Limits", "", *_limits(facts)],
        ["## Training", "", *_training(facts.history)],
        ["## Repeat or continue the training", "", *_commands(facts)],
        *([] if twin is None else [[f"## Compared with {twin.name}", "", *_twin(facts, twin)]]),
        *(_modules(facts.results, split) for split in facts.results.splits),
        [f"This card was written by `tpt bundle` on {facts.results.made['when']}."],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _summary(facts: CardFacts) -> str:
    return (
        f"{description(facts.model)}, trained on {facts.history.samples:,} samples of the task "
        f"{facts.results.task.name}."
    )


def _columns_table(head: str, columns: Sequence[tuple[str, dict[str, str]]]) -> list[str]:
    """Return a table with a column for each mapping, whose keys are the names of the rows."""
    rows = [[name, *(values[name] for _, values in columns)] for name in columns[0][1]]
    return markdown_table([head, *(title for title, _ in columns)], rows)


def _averages(facts: CardFacts) -> list[str]:
    results, splits = facts.results, facts.results.splits
    columns = [(results.task.title(name), _split_values(score)) for name, score in splits.items()]
    data = results.data
    seed = f", seed {data['seed']}" if data.get("seed") is not None else ""
    note = (
        f"Scored on all test questions of the store `{data['name']}` ({data['kind']}{seed}), "
        f"{_seen(data, facts.history)}; 95% intervals in parentheses."
    )
    hashes = "; ".join(f"{name} `{data['sha256'][name]}`" for name in splits)
    return [*_columns_table("", columns), "", note, f"Hashes of the questions: {hashes}."]


def _split_values(score: SplitScore) -> dict[str, str]:
    accuracies = [module.accuracy for module in score.modules.values()]
    above = {
        f"modules above {limit:.0%}": str(sum(accuracy > limit for accuracy in accuracies))
        for limit in COUNTED
    }
    return {
        "modules": str(len(accuracies)),
        "questions": f"{score.n:,}",
        "exact match, average over modules": _average(score),
        **above,
        f"modules below {FAILED:.0%}": str(len(_failed(score))),
        "loss per token": number(score.loss),
    }


def _seen(data: Values, history: History) -> str:
    seen = data["seen_in_training"]
    if seen is None:
        return "which were not compared with the training questions"
    text = f"of which {seen:,} also occur in the training split of the run"
    if len({stage.data["sha256"] for stage in history.stages}) > 1:
        text += f" `{history.stages[-1].run}` (the other data of earlier runs were not compared)"
    return text


def _average(score: SplitScore) -> str:
    average, (low, high) = score.average
    return f"{average:.1%} ({low:.1%} to {high:.1%})"


def _failed(score: SplitScore) -> list[str]:
    return [name for name, module in score.modules.items() if module.accuracy < FAILED]


def _use(facts: CardFacts) -> list[str]:
    return [
        "```python",
        "import tp_transformer as tpt",
        "",
        f'model = tpt.load("{facts.name}")',
        'model.solve(["What is 3 + 4?"])',
        "```",
        "",
        "The model is meant for research and teaching: to try the package, to analyse roles and",
        "attention, and to continue training. It is not a calculator. It answers every question,",
        "also when the answer is wrong, and nothing checks its answers.",
    ]


def _limits(facts: CardFacts) -> list[str]:
    model, results = facts.model, facts.results
    vocabulary = model.vocabulary
    tokens = [token for token in vocabulary.tokens if token not in (PAD, SOS, EOS)]
    shown = " ".join(tokens) if vocabulary.is_words else "".join(tokens)
    unit = vocabulary.tokenisation
    longest = "any number of" if model.n_positions is None else f"at most {model.n_positions - 2}"
    lines = [
        f"- Questions have {longest} {unit}, answers at most {model.max_answer}; it reads only "
        f"these {len(tokens)} {unit}:",
        "",
        "  ```text",
        f"  {shown}",
        "  ```",
        "",
        "- Questions that are worded differently from those of its training data are not tested.",
    ]
    for name, score in results.splits.items():
        failed = ", ".join(f"`{module}`" for module in _failed(score)) or "none"
        lines.append(f"- {results.task.title(name)}, modules below {FAILED:.0%}: {failed}.")
    return lines


def _training(history: History) -> list[str]:
    columns = [(f"`{stage.run}`", _stage_values(stage)) for stage in history.stages]
    hours = NOT_RECORDED if history.core_hours is None else f"{history.core_hours:.1f}"
    lines = [
        *_columns_table("run", columns),
        "",
        f"Total: {history.samples:,} samples, {hours} core-hours: training time, validations "
        "included, times threads. If other programs used the machine, the processor time is less.",
    ]
    if history.unknown_start is not None:
        lines.append(
            f"The first run started from weights with the hash `{history.unknown_start}`, whose "
            "training is not recorded and not included."
        )
    for stage in history.stages:
        for change in stage.changes:
            changed = ", ".join(
                f"`{section}.{name}={json.dumps(value)}`"
                for section, values in change["settings"].items()
                for name, value in values.items()
            )
            lines.append(f"Changed in `{stage.run}` after step {change['step']:,}: {changed}.")
    return lines


def _stage_values(stage: Stage) -> dict[str, str]:
    seconds, core_seconds, validation = stage.seconds, stage.core_seconds, stage.validation
    setting = stage.settings["training"]
    held_out = NOT_RECORDED
    if validation is not None:
        score = f"{share(validation['exact_match'], 1)} correct"
        held_out = f"{validation['n']:,}: {score}, loss {number(validation['loss'])}"
    source, rows = stage.data.get("source", {}), stage.data.get("rows", {})
    data = [f"`{stage.data['name']}`"]
    data += [f"{rows['train']:,} training rows"] if "train" in rows else []
    data += [f"{name} {source[name]}" for name in ("kind", "seed") if name in source]
    return {
        "steps": f"{stage.step:,}",
        "samples": f"{stage.samples:,}",
        "training time": NOT_RECORDED if seconds is None else duration(seconds),
        "core-hours": NOT_RECORDED if core_seconds is None else f"{core_seconds / 3600:.2f}",
        # Earlier versions recorded only the setting.
        "precision": _of_sessions(stage, "precision", str(setting.get("precision"))),
        "seed": str(setting.get("seed")),
        "held-out questions": held_out,
        "data": ", ".join(data),
        "SHA-256 of the data's description": f"`{stage.data['sha256']}`",
        "commit": _of_sessions(stage, "commit"),
        "machine": "; ".join(dict.fromkeys(map(_machine, stage.sessions))),
        "torch": _of_sessions(stage, "torch"),
    }


def _of_sessions(stage: Stage, name: str, default: str = NOT_RECORDED) -> str:
    """Return the different values of all sessions of a run."""
    values = (str(session.get(name) or default) for session in stage.sessions)
    return ", ".join(dict.fromkeys(values))


def _machine(session: Values) -> str:
    processor = session.get("processor") or f"processor {NOT_RECORDED}"
    ranks = "" if session["n_ranks"] in (1, None) else f", {session['n_ranks']} processes"
    threads = f", threads: {session['threads']}" if session["threads"] else ""
    return f"{processor} ({session['device']}{threads}{ranks})"


def _commands(facts: CardFacts) -> list[str]:
    history, last = facts.history, facts.history.stages[-1]
    lines: list[list[str]] = []
    earlier = None
    for position, stage in enumerate(history.stages, 1):
        generation = generation_command(stage.data)
        if generation is not None and generation not in lines:
            lines.append(generation)
        lines.append(_train_command(stage, settings_file(position), stage.run, earlier))
        earlier = f"runs/{stage.run}"
    more = _train_command(last, settings_file(len(history.stages)), "more", facts.name)
    files = ", ".join(f"`{settings_file(n)}`" for n in range(1, len(history.stages) + 1))
    return [
        _repetition(facts),
        "",
        "```console",
        *(f"$ {shlex.join(line)}" for line in lines),
        "```",
        "",
        f"The settings of the runs are beside this card: {files}. To continue from the published "
        "weights:",
        "",
        "```console",
        f"$ {shlex.join(more)}",
        "```",
        "",
        f"The settings of `{last.run}`, which is the last run:",
        "",
        "```yaml",
        settings.dump(last.settings).rstrip(),
        "```",
    ]


def _repetition(facts: CardFacts) -> str:
    """Return the introduction of the commands that repeat the training."""
    if facts.history.unknown_start is not None:
        return "These commands trained it, from weights whose own training is not recorded:"
    return (
        "These commands repeat the training, each run from the best model of the one before. In a "
        "source checkout of the package, `python experiments/repeat_training.py "
        f"{facts.name} --out repeated` runs them, and resumes them after an interruption:"
    )


def _train_command(stage: Stage, config: str, run: str, start: str | None) -> list[str]:
    command = ["tpt", "train", "--config", config, "--data", stage.data["name"]]
    command += ["--run", f"runs/{run}", *_threads(stage)]
    return command if start is None else [*command, "--init-from", start]


def _threads(stage: Stage) -> list[str]:
    threads = stage.sessions[-1]["threads"]
    return ["--threads", str(threads)] if threads else []


def generation_command(data: Values) -> list[str] | None:
    """Return the command that generates a store again; None if it was not generated.

    Only for the Mathematics Dataset, whose stores record what was asked for.
    """
    order = Order.of_source(data.get("source", {}))
    if order is None:
        return None
    command = ["tpt", "data", "generate", "--out", data["name"]]
    for name in ("count", "test_count", "seed"):
        if (value := getattr(order, name)) is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    if order.modules != ("*",):
        command += ["--modules", *order.modules]
    if order.splits != SPLITS:
        splits = dict.fromkeys("train" if x in TRAIN_SPLITS else x for x in order.splits)
        command += ["--splits", *splits]
        levels = [x.removeprefix("train-") for x in order.splits if x in TRAIN_SPLITS]
        command += ["--difficulties", *levels] if levels else []
    return command


def _twin(facts: CardFacts, twin: CardFacts) -> list[str]:
    ours, theirs = facts.history.stages[-1], twin.history.stages[-1]
    others = settings.differences(ours.settings, theirs.settings)
    same = "the same" if ours.data["sha256"] == theirs.data["sha256"] else "other"
    lines = [
        f"`{twin.name}` was trained on {same} data with {twin.history.samples:,} samples. Settings "
        f"of `{ours.run}` that differ from those of `{theirs.run}`: {'; '.join(others) or 'none'}.",
        "",
        *markdown_table(
            ["", facts.name, twin.name],
            [
                [facts.results.task.title(name), _average(score), _average(other)]
                for name, score in facts.results.splits.items()
                if (other := twin.results.splits.get(name)) is not None
            ],
        ),
        "",
        f"{facts.name} minus {twin.name}, on the same questions:",
        "",
    ]
    (compared,) = pairs(facts.results, [twin.results])
    return [*lines, *(f"- {pair_line(pair, facts.name, twin.name)}" for pair in compared)]


def _modules(results: Results, split: str) -> list[str]:
    modules = results.splits[split].modules
    ordered = sorted(modules.items(), key=lambda item: -item[1].accuracy)
    rows = [[f"`{name}`", *_cells(score)] for name, score in ordered]
    heads = ["module", "correct", "95% interval", "questions"]
    return [f"## {results.task.title(split)} by module", "", *markdown_table(heads, rows)]


def _cells(score: ModuleScore) -> list[str]:
    low, high = score.interval
    return [f"{score.accuracy:.1%}", f"{low:.1%} to {high:.1%}", f"{score.n:,}"]


def models_table() -> Table:
    """Return the table of presets: those of Table 1 in its order, then the others."""
    rows = []
    for name in dict.fromkeys([*TABLE_1, *settings.preset_names()]):
        config = model_config(settings.read(name)["model"])
        if isinstance(config, LSTMConfig):
            binding, shape = "-", [str(config.d_hidden), "-", "-", "1"]
        else:
            binding, layers = config.binding, f"{config.n_layers}+{config.n_layers}"
            shape = [str(config.d_model), str(config.d_ff), str(config.n_heads), layers]
        paper = TABLE_1[name].weights if name in TABLE_1 else "-"
        rows.append([name, binding, f"{count_parameters(name):,}", paper, *shape])
    heads = ["preset", "binding", "parameters", "paper", "size", "d_ff", "heads", "layers"]
    return Table(heads=heads, rows=rows, n_texts=2)


def bundled_lines(folder: Path) -> list[str]:
    """Describe the models of a folder that `tpt bundle` wrote; an empty list if there are none."""
    lines = []
    for name in bundled.names(folder):
        results = Results.read(folder / name / bundled.RESULTS)
        scores = ", ".join(
            f"{score.average[0]:.1%} {results.task.title(split).lower()}"
            for split, score in results.splits.items()
        )
        lines += [f"bundled: {name} ({scores})", f"  card: {folder / name / bundled.CARD}"]
    return lines


def description(model: AnyModel) -> str:
    """Return the kind and the sizes of a model, as the beginning of a sentence."""
    config, kind = model.config, f"A model of the architecture {model.architecture()}"
    if isinstance(model, Transformer):
        named = "plain Transformer" if config.binding == "none" else "TP-Transformer"
        binding = "" if config.binding == "none" else f", binding {config.binding}"
        kind = (
            f"A {named} with {config.n_layers}+{config.n_layers} layers, d_model {config.d_model}, "
            f"d_ff {config.d_ff}, {config.n_heads} heads{binding}"
        )
    return f"{kind}: {model.n_parameters:,} parameters"


def hub_card(model: AnyModel, folder: Path) -> str:
    """Return the card for the Hugging Face Hub, with the scores and the card of a folder."""
    from huggingface_hub import ModelCardData

    name, card = folder.resolve().name, folder / bundled.CARD
    scores = _evaluations(folder / bundled.RESULTS)
    data = ModelCardData(
        model_name=name,
        license="apache-2.0",
        library_name="transformers",
        tags=["tp-transformer", "tensor-product-representations"],
        metrics=["exact_match"] if scores else None,
        eval_results=scores or None,
    )
    body = card.read_text("utf-8") if card.is_file() else f"# {name}\n\n{description(model)}.\n"
    start, section, rest = body.partition("\n## ")
    return f"---\n{data.to_yaml()}\n---\n\n{start.rstrip()}\n\n{HUB_USE}{section}{rest}"


def _evaluations(file: Path) -> "list[EvalResult]":
    """Return the averages of results, if there are any, as the Hub reads them."""
    from huggingface_hub import EvalResult

    if not file.is_file():
        return []
    results = Results.read(file)
    task = results.task
    return [
        EvalResult(
            task_type="text-generation",
            task_name=f"answers to questions of the task {task.name}",
            dataset_type=task.name,
            dataset_name=f"{task.name}, {task.title(split)} ({results.data['kind']})",
            dataset_split=split,
            metric_type="exact_match",
            metric_name="exact match, average over modules",
            metric_value=round(score.average[0], 6),
        )
        for split, score in results.splits.items()
    ]


def recorded(folder: Path) -> list[Path]:
    """Return the files of a bundled model about its scores and its training."""
    if not (folder / bundled.RESULTS).is_file():
        return []
    others = {WEIGHTS, CONFIG, VOCABULARY, bundled.CARD}
    return sorted(file for file in folder.iterdir() if file.is_file() and file.name not in others)
