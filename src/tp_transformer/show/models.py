"""Models as users see them: the table of presets, bundled models, the card for the Hub."""

from pathlib import Path
from typing import TYPE_CHECKING

from tp_transformer.model import bundled
from tp_transformer.model.family import AnyModel, count_parameters, model_config
from tp_transformer.model.folder import CONFIG, VOCABULARY, WEIGHTS
from tp_transformer.model.recurrent import LSTMConfig
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.published import TABLE_1
from tp_transformer.scoring.results import Results
from tp_transformer.settings import preset_names, read
from tp_transformer.table import Table

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

USE = """## Use with transformers

```python
import tp_transformer.interop  # registers the model with transformers; no remote code is needed
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained(folder)  # this repository
tokenizer = AutoTokenizer.from_pretrained(folder)
questions = tokenizer(["What is 3 + 4?"], padding=True, return_tensors="pt")
tokenizer.batch_decode(model.generate(**questions), skip_special_tokens=True)
```
"""


def models_table() -> Table:
    """Return the table of presets: those of Table 1 in its order, then the others."""
    rows = []
    for name in dict.fromkeys([*TABLE_1, *preset_names()]):
        config = model_config(read(name)["model"])
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
    return f"---\n{data.to_yaml()}\n---\n\n{start.rstrip()}\n\n{USE}{section}{rest}"


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
