"""Analyse the bundled models, and rewrite the numbers and figures of docs/findings.md.

    python docs/update_findings.py math --out findings

STORE has test questions of the modules below, such as the store of the model cards. The results of
the analyses are written to the folder `--out`; a result that is there already for the same weights,
store, count and commit of the code is used again, so that an interrupted command can be repeated.
Uncommitted changes of the code are not told apart: delete the folder after such a change. Run it
after `tpt bundle`.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from findings_figures import plot_probes, plot_relations
from findings_text import (
    ATTENTION,
    CROSS_ATTENTION,
    DIGITS,
    MODULES,
    ROLES,
    SPLIT,
    SUMS,
    SURGERY,
    VALUES,
    Found,
    Values,
    parts,
    probed,
    relations,
)
from update_bundled import ROOT, rewritten

from tp_transformer.data.store import MANIFEST, Store, open_store
from tp_transformer.foundation import atomic, figures, provenance
from tp_transformer.foundation.run_folder import sha256
from tp_transformer.foundation.statistics import resample
from tp_transformer.interpret.analyses import ANALYSES
from tp_transformer.interpret.attention.following import LEAST_MARGIN
from tp_transformer.interpret.core.arrays import Floats
from tp_transformer.interpret.core.nested import drawn_sample
from tp_transformer.interpret.core.record import CROSS, point, record, untrained
from tp_transformer.interpret.core.relations import RELATIONS, SKIPPED, TO_DIGIT
from tp_transformer.interpret.core.result import plain
from tp_transformer.interpret.core.sample import Sample, draw
from tp_transformer.model import bundled
from tp_transformer.model.family import load
from tp_transformer.model.identity import describe
from tp_transformer.model.transformer import Transformer

PAGE = ROOT / "docs" / "findings.md"
BY_MODULE = (ROLES, VALUES, ATTENTION, SURGERY)  # on questions that the model answers correctly
OF_ROLES = {VALUES, SURGERY, "interchange", "tensor-product"}  # not for a model without roles
FEWEST_QUESTIONS = 24  # for intervals of all analyses


def to_asked_digit(model: Transformer, sample: Sample, seed: int) -> Values:
    """Measure how much the first token of an answer attends to the digit that is asked for.

    The head of the decoder with the largest margin (the weight of that digit minus the mean weight
    of the other digits) is chosen by half of the questions, and scored on the other half. Control:
    the largest margin of any head of an untrained model, on all questions.
    """
    related = [at for at, text in enumerate(sample.questions) if RELATIONS[TO_DIGIT](text)]
    sample = sample.some(related)
    own, other = _weights(model, sample)
    layer, head = np.unravel_index((own - other)[::2].mean(axis=0).argmax(), own.shape[1:])
    kept = own[1::2, layer, head]
    n = len(kept)
    initial_own, initial_other = _weights(untrained(model, seed), sample)
    return {
        "head": f"{layer}.{head}",
        "n": n,
        "asked": kept.mean(),
        "interval": resample(n, lambda counts: counts @ kept / n),
        "others": other[1::2, layer, head].mean(),
        "untrained_margin": (initial_own - initial_other).mean(axis=0).max(),
    }


def _weights(model: Transformer, sample: Sample) -> tuple[Floats, Floats]:
    """Return the weights of that digit, and the means of the others: (question, layer, head)."""
    names = [point(CROSS, layer, "weights") for layer in range(model.config.n_layers)]
    found = record(model, sample, names)
    own, other = [], []
    for number, question in enumerate(sample.questions):
        first = np.stack([found[name][number][:, 0] for name in names])  # (layer, head, key)
        for weights, find in ((own, RELATIONS), (other, SKIPPED)):
            digits = sorted({at for _, keys in find[TO_DIGIT](question) for at in keys})
            weights.append(first[..., digits].mean(axis=-1))
    return np.stack(own), np.stack(other)


def analyses(
    model: Transformer, store: Store, count: int
) -> Iterator[tuple[str, str, Callable[[], Values]]]:
    """Yield each analysis of a model with its module, and a function that computes its values."""
    drawn = partial(draw, model, store, split=SPLIT, count=count)
    for module in MODULES:
        for name in BY_MODULE:
            yield name, module, partial(_values, name, model, partial(drawn, module=module))
    answered = partial(drawn, module=DIGITS)
    yield CROSS_ATTENTION, DIGITS, lambda: to_asked_digit(model, answered(), 0)
    for name in ("information", "tensor-product"):
        any_questions = partial(drawn, module=SUMS, answered=False)
        yield name, SUMS, partial(_values, name, model, any_questions)
    for name in ("binding", "interchange"):
        yield name, "", partial(_values, name, model, partial(drawn_sample, 4 * count, 0))


def _values(name: str, model: Transformer, questions: Callable[[], Sample]) -> Values:
    """Return the values of an analysis without attention maps, which are large."""
    options = {ATTENTION: {"head": 0, "shown": 1}, VALUES: {"vectors": "value"}}
    analysis = ANALYSES[ROLES if name == VALUES else name]
    values = analysis(model, questions(), seed=0, **options.get(name, {})).to_json()
    return {key: value for key, value in values.items() if key not in {"maps", "shortest"}}


def analysed(names: list[str], store: Store, out: Path, count: int) -> Found:
    """Return the values of all analyses, computing those that the folder lacks."""
    found: Found = {}
    for name in names:
        model = load(name)
        if not isinstance(model, Transformer):
            raise SystemExit(f"{name} is not a Transformer")
        origin = {
            "sha256": describe(model, name)["sha256"],
            "data_sha256": sha256(store.path / MANIFEST),
            "count": count,
            "commit": provenance.commit(),
        }
        for analysis, module, compute in analyses(model, store, count):
            if analysis in OF_ROLES and not model.config.d_role:
                continue
            file = out / f"{name}-{analysis}{'-' if module else ''}{module}.json"
            values = json.loads(file.read_text("utf-8")) if file.is_file() else {}
            if values.get("origin") != origin:
                print(file.name, flush=True)
                values = {**plain(compute()), "origin": origin}
                with atomic.whole(file) as unfinished:
                    unfinished.write_text(json.dumps(values), "utf-8")
            found[name, analysis, module] = values
    return found


def main() -> None:
    """Analyse the models, and rewrite the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", type=Path, help="a store with the test questions of all modules")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--count", type=int, default=64, help="questions of each analysis")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to rewrite")
    given = parser.parse_args()
    if given.count < FEWEST_QUESTIONS:
        parser.error(f"intervals need at least {FEWEST_QUESTIONS} questions, not {given.count}")
    given.out.mkdir(parents=True, exist_ok=True)
    names = bundled.names()
    found = analysed(names, open_store(given.store), given.out, given.count)
    page = given.page.read_text("utf-8")
    for mark, text in parts(names, found).items():
        page = rewritten(page, text, mark)
    folder = given.page.parent / "figures"
    folder.mkdir(exist_ok=True)
    plots = {
        "findings-probes": plot_probes(probed(names, found), MODULES),
        "findings-relations": plot_relations(names, relations(names, found), LEAST_MARGIN),
    }
    for name, drawn in plots.items():
        figures.save(drawn, given.out, name)
        shutil.copy(given.out / f"{name}.svg", folder)
    given.page.write_text(page, "utf-8")
    print(given.page)


if __name__ == "__main__":
    main()
