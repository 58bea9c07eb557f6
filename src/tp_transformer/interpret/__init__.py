"""The paper's analyses, with baselines and controls, on any checkpoint.

>>> found = tp_transformer.interpret.roles(model, questions)
>>> found.summary(), found.to_json(), found.plot(), found.save("analysis")

Every analysis in `ANALYSES` is a function of this package.
"""

from tp_transformer.interpret.analyses import ANALYSES as ANALYSES
from tp_transformer.interpret.analyses import Analysis

# The registry has imported the packages of the analyses; a later import would replace these names.
globals().update({name.replace("-", "_"): analysis for name, analysis in ANALYSES.items()})


def __getattr__(name: str) -> Analysis:
    """Return an analysis that was registered after this package was imported."""
    if name.replace("_", "-") in ANALYSES:
        return ANALYSES[name.replace("_", "-")]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
