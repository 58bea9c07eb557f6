"""The paper's analyses, with baselines and controls, on any checkpoint.

>>> result = tp_transformer.interpret.roles(model, questions)
>>> result.summary(), result.to_json(), result.plot(), result.save("analysis")

Every analysis in `ANALYSES` is a function of this package.
"""

import sys
from types import ModuleType
from typing import Any

from tp_transformer.interpret.analyses import ANALYSES as ANALYSES


class _Package(ModuleType):
    """A package whose attributes are analyses, also after their modules are imported."""

    def __getattr__(self, name: str) -> Any:
        if name.replace("_", "-") in ANALYSES:
            return ANALYSES[name.replace("_", "-")]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets a submodule as an attribute, which would hide the analysis.
        if not (isinstance(value, ModuleType) and name.replace("_", "-") in ANALYSES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
