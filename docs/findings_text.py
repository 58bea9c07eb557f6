"""The generated parts of docs/findings.md, from the values of docs/update_findings.py."""

from typing import Any

from findings_figures import best_probe, scored_labels, text_probe

from tp_transformer.interpret.surgery.result import OPERATIONS, PAIRS
from tp_transformer.model import bundled
from tp_transformer.scoring.results import Results
from tp_transformer.show.document import markdown_table

SUMS, DIGITS = "arithmetic__add_or_sub", "numbers__place_value"
MODULES = (SUMS, DIGITS, "comparison__sort", "calculus__differentiate")
ROLES, VALUES, ATTENTION, SURGERY = "roles", "values", "attention", "surgery"
BOTH, UNTRAINED, TEXT, NONE = EXCEEDED = (
    "both controls",
    "untrained models only",
    "the text probe only",
    "neither",
)
CROSS_ATTENTION = "cross-attention"  # an analysis of this file
ALL_HEADS = "all heads"  # the target of surgery
SPLIT = "interpolate"  # of the questions
Values = dict[str, Any]
Found = dict[tuple[str, str, str], Values]  # by model, analysis and module (or "")


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
        Results.read(bundled.find(name) / bundled.RESULTS).splits[SPLIT].modules for name in names
    ]
    hashes = [found[name, "binding", ""]["origin"]["sha256"] for name in names]
    rows = [["SHA-256 of the model", *(f"`{sha256[:12]}`" for sha256 in hashes)]]
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
                f"{_points(best['margin'])} ({_points(low)} to {_points(high)}), "
                f"head {best['layer']}.{best['head']}, {best['hits']:.0%}"
            )
            if best["is_clear"]:
                followed[name].append(title)
        rows.append(row)
    lines = markdown_table(["relation", *_code(names)], rows)
    for name, titles in followed.items():
        lines += ["", f"`{name}` clearly follows: {'; '.join(titles) or 'no relation'}."]
    return lines


def _points(share: float) -> str:
    """Return a share in percentage points, without the sign of a zero."""
    return str(round(100 * share))


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
        lines += ["", f"The ratio of `{name}` is {values['verdict']}."]
    for name in names:
        if (name, "interchange", "") in found:
            lines += ["", f"Interchange in `{name}`:", ""]
            lines += [f"- {line}" for line in found[name, "interchange", ""]["summary"]]
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
