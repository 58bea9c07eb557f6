"""Analyse the bundled models, and rewrite the numbers and figures of docs/findings.md.

    python docs/update_findings.py math --out findings

STORE has test questions of the modules below, such as the store of the model cards. The results of
the analyses are written to the folder `--out`; a result that is there already for the same weights
and count is used again, so that an interrupted command can be repeated. Run it after
`tpt bundle`.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from findings_figures import best_probe, plot_probes, plot_relations, scored_labels, text_probe
from update_bundled import ROOT, rewritten

from tp_transformer.data.store import Store, open_store
from tp_transformer.foundation import atomic, figures
from tp_transformer.foundation.statistics import resample
from tp_transformer.interpret.analyses import ANALYSES
from tp_transformer.interpret.attention.following import LEAST_MARGIN
from tp_transformer.interpret.core.arrays import Floats
from tp_transformer.interpret.core.nested import drawn_sample
from tp_transformer.interpret.core.record import CROSS, point, record, untrained
from tp_transformer.interpret.core.relations import RELATIONS, SKIPPED, TO_DIGIT
from tp_transformer.interpret.core.result import plain
from tp_transformer.interpret.core.sample import Sample, draw
from tp_transformer.interpret.surgery.result import OPERATIONS, PAIRS
from tp_transformer.model import bundled
from tp_transformer.model.family import load
from tp_transformer.model.identity import describe
from tp_transformer.model.transformer import Transformer
from tp_transformer.scoring.results import Results
from tp_transformer.show.document import markdown_table

PAGE = ROOT / "docs" / "findings.md"
SUMS, DIGITS = "arithmetic__add_or_sub", "numbers__place_value"
MODULES = (SUMS, DIGITS, "comparison__sort", "calculus__differentiate")
ROLES, VALUES, ATTENTION, SURGERY = "roles", "values", "attention", "surgery"
BY_MODULE = (ROLES, VALUES, ATTENTION, SURGERY)  # on questions that the model answers correctly
OF_ROLES = {VALUES, SURGERY, "interchange", "tensor-product"}  # not for a model without roles
BOTH, UNTRAINED, TEXT, NONE = EXCEEDED = (
    "both controls",
    "untrained models only",
    "the text probe only",
    "neither",
)
CROSS_ATTENTION = "cross-attention"  # an analysis of this file
ALL_HEADS = "all heads"  # the target of surgery
Values = dict[str, Any]
Found = dict[tuple[str, str, str], Values]  # by model, analysis and module (or "")


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
    drawn = partial(draw, model, store, count=count)
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
        made = {"sha256": describe(model, name)["sha256"], "count": count}
        for analysis, module, compute in analyses(model, store, count):
            if analysis in OF_ROLES and not model.config.d_role:
                continue
            file = out / f"{name}-{analysis}{'-' if module else ''}{module}.json"
            values = json.loads(file.read_text("utf-8")) if file.is_file() else {}
            if values.get("made") != made:
                print(file.name, flush=True)
                values = {**plain(compute()), "made": made}
                with atomic.whole(file) as unfinished:
                    unfinished.write_text(json.dumps(values), "utf-8")
            found[name, analysis, module] = values
    return found


def parts(names: list[str], found: Found) -> dict[str, str]:
    """Return the generated parts of the page by their marks."""
    texts = {
        "models": _models(names, found),
        "roles": _roles(names, found),
        "attention": _attention(names, found),
        "decoder": _decoder(names, found),
        "information": _information(names, found),
        "binding": _binding(names, found),
        "surgery": _surgery(names, found),
        "tensor product": _tensor_product(names, found),
    }
    return {mark: "\n".join(lines) + "\n" for mark, lines in texts.items()}


def _models(names: list[str], found: Found) -> list[str]:
    """The models, and the modules of the analyses."""
    scores = [
        next(iter(Results.read(bundled.find(name) / bundled.RESULTS).splits.values())).modules
        for name in names
    ]
    rows = [
        ["SHA-256", *(f"`{found[name, 'binding', '']['made']['sha256'][:12]}`" for name in names)]
    ]
    rows += [
        [f"correct answers, `{module}`", *(f"{own[module].accuracy:.1%}" for own in scores)]
        for module in MODULES
    ]
    rows += [
        [
            f"analysed questions, `{module}`",
            *(str(len(found[name, ROLES, module]["sample"]["questions"])) for name in names),
        ]
        for module in MODULES
    ]
    date = found[names[0], "binding", ""]["environment"]["when"][:10]
    return [*markdown_table(["", *_code(names)], rows), "", f"Analysed on {date}."]


def _code(names: list[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def probed(names: list[str], found: Found) -> dict[str, dict[str, Values]]:
    """Return the results of probes by model and vectors, then by module.

    The vectors of a model without roles are its values.
    """
    return {
        f"{name}, {found[name, analysis, SUMS]['vectors']}s": {
            module: found[name, analysis, module] for module in MODULES
        }
        for name in names
        for analysis in (ROLES, VALUES)
        if (name, analysis, SUMS) in found
    }


def _roles(names: list[str], found: Found) -> list[str]:
    """A row for each label, and which scores are above the controls."""
    series = probed(names, found)
    first = next(iter(series.values()))
    rows = []
    exceeded: dict[str, dict[str, list[str]]] = {
        title: {controls: [] for controls in EXCEEDED} for title in series
    }
    for module in MODULES:
        for name, label in scored_labels(first[module]).items():
            row = [f"{name} ({module.partition('__')[2]})"]
            for title, own in series.items():
                exceeded[title][_exceeded(own[module], name)].append(row[0])
            row += [_accuracy(own[module], name) for own in series.values()]
            initial = max(one["accuracy"] for one in label["initial"])
            majority = best_probe(first[module], name)["probe"]["majority"]
            row += [f"{initial:.0%}", f"{text_probe(label)['accuracy']:.0%}", f"{majority:.0%}"]
            rows.append(row)
    lines = markdown_table(["label", *series, "untrained", "text", "most frequent"], rows)
    lines += ["", "Labels whose scores are clearly above the controls:", ""]
    for title, labels in exceeded.items():
        said = [f"{controls}: {', '.join(own) or 'none'}" for controls, own in labels.items()]
        lines.append(f"- {title}: above {'; '.join(said)}.")
    return [*lines, "", *_clusters(series)]


def _accuracy(values: Values, label: str) -> str:
    """Return the accuracy of the best head for a label, with its interval."""
    if label not in scored_labels(values):
        return "-"
    best = best_probe(values, label)
    low, high = best["probe"]["interval"]
    accuracy = f"{best['probe']['accuracy']:.0%} ({low:.0%} to {high:.0%})"
    return f"{accuracy}, {best['layer']}.{best['head']}"


def _exceeded(values: Values, label: str) -> str:
    """Return the controls that the interval of the best head for a label is above."""
    own = scored_labels(values).get(label)
    if own is None:
        return NONE
    low = best_probe(values, label)["probe"]["interval"][0]
    is_learned = low > max(one["interval"][1] for one in own["initial"])
    is_beyond_text = low > text_probe(own)["interval"][1]
    if is_learned and is_beyond_text:
        return BOTH
    if is_learned:
        return UNTRAINED
    return TEXT if is_beyond_text else NONE


def _clusters(series: dict[str, dict[str, Values]]) -> list[str]:
    """The number of clusters, of names, and of names that say more than the character."""
    rows = []
    for module in MODULES:
        row = [f"`{module}`"]
        for own in series.values():
            named = [one for head in own[module]["heads"] for one in head["names"]]
            structural = sum(one["is_structural"] for one in named if one)
            row.append(
                f"{len(named)}, {sum(one is not None for one in named)}, {structural} "
                f"({own[module]['initial_structural_names']})"
            )
        rows.append(row)
    return markdown_table(["clusters, named, structural (untrained)", *series], rows)


def _attention(names: list[str], found: Found) -> list[str]:
    """The best head for each relation that enough questions have."""
    rows = []
    followed: dict[str, list[str]] = {name: [] for name in names}
    for title, rankings in relations(names, found):
        row = [title]
        for name, ranking in zip(names, rankings, strict=True):
            best = ranking["best"]
            low, high = best["interval"]
            row.append(
                f"{100 * best['margin']:.0f} ({100 * low:.0f} to {100 * high:.0f}), "
                f"head {best['layer']}.{best['head']}, {best['hits']:.0%}"
            )
            if best["is_clear"]:
                followed[name].append(title)
        rows.append(row)
    lines = markdown_table(["relation", *_code(names)], rows)
    for name, titles in followed.items():
        lines += ["", f"`{name}` clearly follows: {'; '.join(titles) or 'no relation'}."]
    return lines


def relations(names: list[str], found: Found) -> list[tuple[str, list[Values]]]:
    """Return the rankings of all models for each relation, with the best head of each."""
    rows = []
    for module in MODULES:
        rankings = [found[name, ATTENTION, module]["rankings"] for name in names]
        for own in zip(*rankings, strict=True):
            if all(ranking["heads"] and ranking["heads"][0]["interval"] for ranking in own):
                clear = [[head for head in one["heads"] if head["is_clear"]] for one in own]
                best = [
                    {**one, "best": (heads or one["heads"])[0]}
                    for one, heads in zip(own, clear, strict=True)
                ]
                rows.append((f"{own[0]['relation']} ({module.partition('__')[2]})", best))
    return rows


def _decoder(names: list[str], found: Found) -> list[str]:
    """The attention of the decoder to the digit that is asked for."""
    own = [found[name, CROSS_ATTENTION, DIGITS] for name in names]
    low_high = [" to ".join(f"{end:.0%}" for end in one["interval"]) for one in own]
    rows = [
        ["head (layer.head)", *(one["head"] for one in own)],
        [
            "weight of the digit asked for",
            *(f"{one['asked']:.0%} ({ends})" for one, ends in zip(own, low_high, strict=True)),
        ],
        ["mean weight of another digit", *(f"{one['others']:.1%}" for one in own)],
        [
            "largest margin in an untrained model",
            *(f"{100 * one['untrained_margin']:.1f} points" for one in own),
        ],
        ["questions", *(str(one["n"]) for one in own)],
    ]
    return markdown_table(["", *_code(names)], rows)


def _information(names: list[str], found: Found) -> list[str]:
    """R2 of the input and the output of the last layer, with its controls."""
    results = [found[name, "information", SUMS] for name in names]
    rows = []
    for state in ("input", "output"):
        own = [values["states"][state]["held_out"] for values in results]
        rows += [
            [
                f"{state} of the last layer, R2",
                *(_with_ends(one["average_r2"], one["average_interval"]) for one in own),
            ],
            [f"{state}, random value maps", *(_ends(one["random_map_range"]) for one in own)],
            [
                f"{state}, best {results[0]['d_head']} numbers",
                *(f"{one['optimum_r2']:.2f}" for one in own),
            ],
        ]
    return markdown_table(["", *_code(names)], rows)


def _ends(interval: list[float]) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}"


def _with_ends(value: float, interval: list[float]) -> str:
    return f"{value:.2f} ({_ends(interval)})"


def _binding(names: list[str], found: Found) -> list[str]:
    """The ratio of distances, the verdicts, and those of interchange."""
    own = [found[name, "binding", ""] for name in names]
    answered = [max(one["n_answered"] for one in values["exchanges"]) for values in own]
    ratios = [values["ratio_to_control"] for values in own]
    initial = [sorted(values["initial_ratios_to_control"]) for values in own]
    rows = [
        ["ratio", *(_with_ends(one["value"], one["interval"]) for one in ratios)],
        ["ratio in untrained models", *(_ends([one[0], one[-1]]) for one in initial)],
        [
            "nested fractions answered correctly",
            *(
                f"{n} of {len(values['sample']['questions'])}"
                for n, values in zip(answered, own, strict=True)
            ),
        ],
    ]
    lines = markdown_table(["", *_code(names)], rows)
    for name, values in zip(names, own, strict=True):
        verdict = values["summary"][1].rpartition("times. ")[2]
        lines += ["", f"`{name}`: {verdict}"]
    for name in names:
        if (name, "interchange", "") in found:
            lines += ["", *(f"{line}  " for line in found[name, "interchange", ""]["summary"])]
    return lines


def _surgery(names: list[str], found: Found) -> list[str]:
    """The shares of changed answers if the roles of all heads of the last layer are changed."""
    name = next(name for name in names if (name, SURGERY, SUMS) in found)
    results = [found[name, SURGERY, module] for module in MODULES]
    rows = []
    for operation in OPERATIONS:
        row = [operation]
        for values in results:
            (effect,) = (
                effect
                for effect in values["effects"]
                if (effect["target"], effect["operation"]) == (ALL_HEADS, operation)
            )
            low, high = effect["changed_interval"]
            row.append(f"{effect['changed_share']:.0%} ({low:.0%} to {high:.0%})")
        rows.append(row)
    lines = markdown_table(["roles of the last layer", *_code(list(MODULES))], rows)
    for operation, control in PAIRS:
        said = [
            f"{one['says']} (p = {one['p_value']:.2g}, `{module}`)"
            for module, values in zip(MODULES, results, strict=True)
            for one in values["comparisons"]
            if (one["target"], one["operation"]) == (ALL_HEADS, operation)
        ]
        lines += [
            "",
            f"Changed answers after {operation}, compared with {control}: {'; '.join(said)}.",
        ]
    return lines


def _tensor_product(names: list[str], found: Found) -> list[str]:
    name = next(name for name in names if (name, "tensor-product", SUMS) in found)
    values = found[name, "tensor-product", SUMS]
    (table,) = values["tables"]
    return [*markdown_table(table["columns"], table["rows"]), "", values["summary"][0]]


def main() -> None:
    """Analyse the models, and rewrite the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", type=Path, help="a store with the test questions of all modules")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--count", type=int, default=64, help="questions of each analysis")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to rewrite")
    given = parser.parse_args()
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
