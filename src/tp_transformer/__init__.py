"""The TP-Transformer of Schlag et al. (2020), its baselines, and the Mathematics Dataset.

The packages; each imports only from those before it:

- `errors`, `settings`, `registry`, `runtime`: files, processes, ranks, signals, progress
- `data`: stores of questions and answers, batches
- `model`: the Transformer and the TP-Transformer, the LSTM, search
- `scoring`: exact match, kinds of mistakes, comparison
- `training`: optimizers, checkpoints, the loop, runs
- `interpret`: one package per analysis
- `interop`: Hugging Face, ONNX, checkpoints of the authors of the paper
- `show`: tables, documents, figures of runs, the live panel
- `study`: commands that combine several runs
- `verbs` and `cli`: the command line

`docs/architecture.md` follows a question, a training step and an analysis through the code.

Names are imported on first use, so that importing the package is fast.
"""

__version__ = "0.2.0"

TYPE_CHECKING = False  # type checkers assume True; importing it from `typing` would be slow
if TYPE_CHECKING:
    from tp_transformer import data as data
    from tp_transformer import interpret as interpret
    from tp_transformer import model as model
    from tp_transformer.data.vocabulary import Vocabulary as Vocabulary
    from tp_transformer.errors import UserError as UserError
    from tp_transformer.model.batch import Batch as Batch
    from tp_transformer.model.checkpoint import build as build
    from tp_transformer.model.checkpoint import load as load
    from tp_transformer.model.config import TransformerConfig as TransformerConfig
    from tp_transformer.model.drop_in import TPMultiheadAttention as TPMultiheadAttention
    from tp_transformer.model.drop_in import add_roles as add_roles
    from tp_transformer.model.recurrent import LSTM as LSTM
    from tp_transformer.model.recurrent import LSTMConfig as LSTMConfig
    from tp_transformer.model.trace import trace as trace
    from tp_transformer.model.transformer import Transformer as Transformer
    from tp_transformer.report.charts import plot as plot
    from tp_transformer.report.comparison import compare as compare
    from tp_transformer.scoring.evaluate import evaluate as evaluate
    from tp_transformer.scoring.options import EvaluationOptions as EvaluationOptions
    from tp_transformer.scoring.options import QuestionChoice as QuestionChoice
    from tp_transformer.scoring.results import Results as Results
    from tp_transformer.settings import preset_names as preset_names
    from tp_transformer.training.config import RunConfig as RunConfig
    from tp_transformer.training.run import train as train

_HOMES = {
    "Batch": "model.batch",
    "EvaluationOptions": "scoring.options",
    "LSTM": "model.recurrent",
    "LSTMConfig": "model.recurrent",
    "QuestionChoice": "scoring.options",
    "Results": "scoring.results",
    "RunConfig": "training.config",
    "TPMultiheadAttention": "model.drop_in",
    "Transformer": "model.transformer",
    "TransformerConfig": "model.config",
    "UserError": "errors",
    "Vocabulary": "data.vocabulary",
    "add_roles": "model.drop_in",
    "build": "model.checkpoint",
    "compare": "report.comparison",
    "evaluate": "scoring.evaluate",
    "load": "model.checkpoint",
    "plot": "report.charts",
    "preset_names": "settings",
    "trace": "model.trace",
    "train": "training.run",
}

__all__ = ["__version__", *_HOMES]

_PACKAGES = ("data", "interpret", "model")

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name):  # noqa: ANN001, ANN202
        from importlib import import_module

        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        if name in _PACKAGES:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_PACKAGES])
