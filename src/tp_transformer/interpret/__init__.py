"""The paper's analyses, with baselines and controls, on any checkpoint.

>>> found = tp_transformer.interpret.roles(model, questions)
>>> found.summary(), found.to_json(), found.plot(), found.save("analysis")

Every analysis in `ANALYSES` is a function of this package.
"""

from tp_transformer.interpret.analyses import ANALYSES as ANALYSES
from tp_transformer.interpret.analyses import Analysis

# The registry has imported the packages of the analyses, which would hide the analyses.
for _name in ANALYSES:
    globals().pop(_name.replace("-", "_"), None)


def __getattr__(name: str) -> Analysis:
    """Return the registered analysis of this name."""
    if name.replace("_", "-") in ANALYSES:
        return ANALYSES[name.replace("_", "-")]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
