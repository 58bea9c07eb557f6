"""Models of this package in Hugging Face transformers: `generate`, `Trainer`, the Auto classes.

- config, model, tokenizer: the classes that transformers loads.
- folder: the folder that `tpt export --format hf` writes; its import registers the model and the
  tokenizer with the Auto classes.
- hub: a model of this package that is loaded from and pushed to the Hub by itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tp_transformer.interop.hf.config import TPTransformerConfig
    from tp_transformer.interop.hf.hub import HubTransformer
    from tp_transformer.interop.hf.model import TPTransformerForConditionalGeneration
    from tp_transformer.interop.hf.tokenizer import TPTransformerTokenizer

__all__ = [
    "HubTransformer",
    "TPTransformerConfig",
    "TPTransformerForConditionalGeneration",
    "TPTransformerTokenizer",
]

# Imported on first use: HubTransformer does not need transformers.
_HOMES = {
    "HubTransformer": "hub",
    "TPTransformerConfig": "config",
    "TPTransformerForConditionalGeneration": "model",
    "TPTransformerTokenizer": "tokenizer",
}

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
