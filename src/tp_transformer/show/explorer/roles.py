"""The clusters of `tpt interpret roles`, in the format of the page."""

import json
from pathlib import Path

import numpy as np

from tp_transformer.errors import UserError
from tp_transformer.model.checkpoint import AnyModel, model_hash
from tp_transformer.runtime.provenance import Values


def read_roles(file: str | Path, model: AnyModel) -> Values:
    """Return the centroids and names in a file roles.json, which must belong to this model.

    `head` is the head to show first: the one with the most names that say more than the character.
    """
    try:
        values = json.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged or not JSON: {error}") from error
    if not isinstance(values, dict) or values.get("analysis") != "roles":
        raise UserError(f"{file} holds no clusters of roles; `tpt interpret roles` writes them")
    try:
        return _checked(values, model, str(file))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is damaged or of an earlier version: {error!r:.200}") from error


def _checked(values: Values, model: AnyModel, file: str) -> Values:
    vectors = "role" if model.config.d_role else "value"
    if values["model"]["sha256"] != model_hash(model):
        raise UserError(f"{file} was made with another model")
    if values["vectors"] != vectors:
        raise UserError(f"{file} has clusters of {values['vectors']} vectors, not of {vectors}s")
    size = model.config.d_role or model.config.d_model // model.config.n_heads
    heads, n_structural = [], []
    for head in values["heads"]:
        centroids = np.array(head["centroids"], dtype=np.float64)
        if centroids.ndim != 2 or centroids.shape[1] != size or not np.isfinite(centroids).all():
            raise ValueError(f"the centroids of head {head['head']}")
        names = [None if name is None else str(name["name"]) for name in head["names"]]
        if len(names) != len(centroids):
            raise ValueError(f"the names of head {head['head']}")
        heads.append({"head": int(head["head"]), "centroids": centroids.tolist(), "names": names})
        n_structural.append(sum(bool(name["is_structural"]) for name in head["names"] if name))
    first = heads[n_structural.index(max(n_structural))]["head"]  # as in `tpt demo`
    return {"layer": int(values["layer"]), "head": first, "heads": heads}
