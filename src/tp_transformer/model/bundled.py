"""The models that the package contains: their names and folders.

`tpt bundle` (study/bundle.py) writes all of `bundled/`. `models.json` lists the names, first that
of the model that is used when none is given. Each model is a model folder with more files:
`README.md` is its card, `results.json` its scores, `training.json` its training, `training-1.yaml`
the settings of its first run, and `roles.json` the named clusters of its last encoder layer, if it
answers questions of the paper's module.
"""

import json
from pathlib import Path

from tp_transformer.errors import FolderError

FOLDER = Path(__file__).parents[1] / "bundled"
INDEX, CARD, RESULTS, ROLES = "models.json", "README.md", "results.json", "roles.json"


def names(folder: Path | None = None) -> list[str]:
    """Return the names of the models in a folder of `tpt bundle`, by default in the package."""
    file = (FOLDER if folder is None else folder) / INDEX
    return [str(name) for name in json.loads(file.read_text("utf-8"))] if file.is_file() else []


def default() -> str:
    """Return the name of the model that is used when none is given."""
    bundled = names()
    if not bundled:
        raise FolderError(
            "no model is bundled with this copy of the package; give the folder of a model "
            "(--model FOLDER)"
        )
    return bundled[0]


def find(model: str | Path | None) -> Path:
    """Return a folder: that of the default model, of a bundled model by name, or the given one.

    An existing folder has precedence over a bundled model of the same name.
    """
    path = Path(default() if model is None else model)
    is_name = model is None or (not path.exists() and str(model) in names())
    return FOLDER / path if is_name else path
