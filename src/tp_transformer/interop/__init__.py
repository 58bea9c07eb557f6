"""Models for other libraries, and from others.

The import of this package registers the model with the Auto classes of transformers, if that is
installed.

- hf: Hugging Face transformers and the Hub. onnx: graphs for ONNX runtimes.
- authors, pickles: the checkpoints published by the authors of the paper.
"""

from importlib import import_module
from importlib.util import find_spec

if find_spec("transformers") is not None:
    import_module(f"{__name__}.hf")
