"""The card of a model for the Hugging Face Hub: metadata, scores and use."""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from tp_transformer.model import bundled
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.model.folder import CONFIG, VOCABULARY, WEIGHTS
from tp_transformer.scoring.results import Results
from tp_transformer.show.model_card import description

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


def hub_card(model: AnyModel, folder: Path) -> str:
    """Return the card of a model from a folder, with the scores and the card that are there."""
    name, file = folder.resolve().name, folder / bundled.RESULTS
    results = Results.read(file) if file.is_file() else None
    data = ModelCardData(
        model_name=name,
        license="apache-2.0",
        library_name="transformers",
        tags=["tp-transformer", "tensor-product-representations"],
        metrics=["exact_match"] if results else None,
        eval_results=_scores(results) if results else None,
    )
    own = folder / bundled.CARD
    body = own.read_text("utf-8") if own.is_file() else f"# {name}\n\n{description(model)}.\n"
    start, section, rest = body.partition("\n## ")
    return f"---\n{data.to_yaml()}\n---\n\n{start.rstrip()}\n\n{USE}{section}{rest}"


def recorded(folder: Path) -> list[Path]:
    """Return the files of a bundled model about its scores and its training."""
    if not (folder / bundled.RESULTS).is_file():
        return []
    others = {WEIGHTS, CONFIG, VOCABULARY, bundled.CARD}
    return sorted(file for file in folder.iterdir() if file.is_file() and file.name not in others)


def _scores(results: Results) -> list[EvalResult]:
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
