"""Simulations of the analyses of roles and of information with known truth.

    python experiments/roles_simulations.py clusters   # unrelated clusters, mutual information
    python experiments/roles_simulations.py readers    # accuracy of linear text probes
    python experiments/roles_simulations.py reversal   # planted sides, random vectors, the text
    python experiments/roles_simulations.py draws      # section 6.1's samples, synthetic states
    python experiments/roles_simulations.py trained --model runs/tp --data quotients

Each prints a Markdown table of docs/interpretation.md. All random numbers are seeded, so the same
command prints the same table. `trained` repeats `draws` on the states of a trained model;
docs/experiments.md has the commands that train it.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from unittest import mock

import numpy as np
import numpy.typing as npt

import tp_transformer as tpt
from tp_transformer.data.generated import TASKS
from tp_transformer.data.mathematics.produce import generate
from tp_transformer.data.store import open_store
from tp_transformer.interpret.analyses import AnalysisOptions, checked_model
from tp_transformer.interpret.core.record import record
from tp_transformer.interpret.core.sample import Sample
from tp_transformer.interpret.core.structure import LABELS
from tp_transformer.interpret.information import Draws, in_sample, predict
from tp_transformer.interpret.roles import probes
from tp_transformer.interpret.roles.probes import Labelled, Positions
from tp_transformer.interpret.roles.reversal import Sides, Transfer, transfer

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
DrawSamples = Callable[[Integers, int, np.random.Generator], Draws]

MIXED, QUOTIENTS = "arithmetic__mixed", "quotients"
QUESTIONS = 128  # the default of the analyses

CLUSTERS = 20
CLUSTER_DRAWS = 400
STRETCHES = {"clusters of single characters": 1, "clusters of five characters in a row": 5}
PERMUTATIONS, EXCEEDED = 99, 95  # an exact baseline has 95 of 99 below the score in 5% of cases

REACHES = tuple(range(0, 18, 2))  # characters on each side that a text probe sees
STRONG_RIDGE = 1.0

VECTOR_DRAWS = 200
D_HEAD = 16
PLANTED_NOISE = 0.3  # standard deviation, in each dimension, of vectors one unit from the origin

SETS = 60  # of questions, from each of which an interval is computed
TRAINED_SETS = 20  # the same for a trained model, which has more dimensions
SINGLES = 300  # draws from all questions
SIZES = ((60, 50), (110, 100), (128, 100), (400, 100))  # questions there are, samples in a draw
ALL_QUESTIONS, POSITIONS_EACH = 4000, 6
D_STATE, D_VALUE = 6, 2
VALUE_NOISE = 0.3
WORLDS = ("noise", "in common", "heavy tails")
READINGS: dict[str, DrawSamples] = {
    "positions": Draws.of_positions,
    "problems": Draws.of_problems,
}
N_PAPER = 100  # the paper's n


def sample_of(source: str, count: int) -> Sample:
    """Return the first test questions of the paper's module, or of the task quotients."""
    if source == MIXED:
        drawn = generate(MIXED, split="interpolate", count=count, seed=0)
        pairs = [(example.question, example.answer) for example in drawn]
    else:
        tested = (row for row in TASKS[QUOTIENTS]().rows() if row.split == "test")
        pairs = [(row.question, row.answer) for row in islice(tested, count)]
    questions, answers = zip(*pairs, strict=True)
    return Sample(questions=questions, answers=answers, origin=source)


def row(*cells: object) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def heading(n_texts: int, *names: str) -> Iterator[str]:
    """Return the first two lines of a Markdown table; columns after the first few are numbers."""
    yield row(*names)
    yield f"|{'---|' * n_texts}{'---:|' * (len(names) - n_texts)}"


def clusters(count: int, draws: int) -> Iterator[str]:
    """Print how often the mutual information of random clusters exceeds that of permuted labels."""
    positions = Positions.of(sample_of(MIXED, count))
    n_positions = len(positions.characters)
    yield from heading(1, "label", *STRETCHES)
    for name in LABELS:
        labelled = Labelled.of(name, positions.labels[name], positions.question)
        cells = []
        for length in STRETCHES.values():
            found = []
            for seed in range(draws):
                rng = np.random.default_rng([seed, length])
                drawn = np.repeat(rng.integers(CLUSTERS, size=-(-n_positions // length)), length)
                found.append(exceeds(drawn, labelled, rng))
            cells.append(f"{np.mean(found):.1%}")
        yield row(name, *cells)


def exceeds(clusters: Integers, labelled: Labelled, rng: np.random.Generator) -> bool:
    """Whether clusters have more information on the labels than on permuted ones."""
    own, n_classes = clusters[labelled.position], len(labelled.classes)
    permuted = (labelled.permuted(rng) for _ in range(PERMUTATIONS))
    tables = [
        probes.contingency(own, labels, CLUSTERS, n_classes)
        for labels in (labelled.label, *permuted)
    ]
    score, *baselines = probes.normalised_information(np.stack(tables))
    return sum(score > other for other in baselines) >= EXCEEDED


def readers(count: int) -> Iterator[str]:
    """Print the accuracy of linear text probes by the number of characters that they see."""
    positions = Positions.of(sample_of(MIXED, count))
    strong = f"best, ridge {STRONG_RIDGE:g}"
    yield from heading(1, "label", *map(str, REACHES), strong)
    for name in LABELS:
        labelled = Labelled.of(name, positions.labels[name], positions.question)
        accuracies = [_accuracy(positions, labelled, reach) for reach in REACHES]
        with mock.patch.object(probes, "RIDGE", STRONG_RIDGE):
            stronger = max(_accuracy(positions, labelled, reach) for reach in REACHES)
        cells = [f"{accuracy:.1%}" for accuracy in accuracies]
        best = int(np.argmax(accuracies))
        cells[best] = f"**{cells[best]}**"
        yield row(name, *cells, f"{stronger:.1%}")


def _accuracy(positions: Positions, labelled: Labelled, reach: int) -> float:
    features = positions.character_features(reach)[labelled.position]
    fold = probes.folds(labelled.question, seed=0)
    said = probes.held_out(features, labelled.label, len(labelled.classes), fold)
    return float((said == labelled.label).mean())


def reversal(count: int, draws: int) -> Iterator[str]:
    """Print the predicted sides of probes that are fitted where reversed and unreversed agree."""
    yield from heading(
        2,
        *("vectors", "questions", "correct where labels agree", "reversed where they disagree"),
        *("clearly above 50%", "clearly below 50%"),
    )
    for source in (MIXED, QUOTIENTS):
        positions = Positions.of(sample_of(source, count))
        sides = Sides.of(positions)
        if sides.obstacle is not None:
            raise ValueError(sides.obstacle)
        for name, labels in (("reversed", sides.reversed), ("unreversed", sides.unreversed)):
            found = [
                transfer(_planted(positions, sides, labels, seed), sides, seed)
                for seed in range(draws)
            ]
            yield _transfers(f"planted: {name} sides", source, found)
        found = [transfer(_random(positions, seed), sides, seed) for seed in range(draws)]
        yield _transfers("random", source, found)
        text = probes.widen(
            lambda reach, positions=positions, sides=sides: transfer(
                positions.character_features(reach), sides, seed=0
            ),
            positions.longest,
        )
        best = max(text, key=lambda reach: text[reach].accuracy)
        yield _transfers(f"text, {best} characters on each side", source, [text[best]])


def _random(positions: Positions, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((len(positions.characters), D_HEAD))


def _planted(positions: Positions, sides: Sides, labels: Integers, seed: int) -> Floats:
    """Return noise, plus one unit in the dimension of the side at each position that has one."""
    vectors = PLANTED_NOISE * _random(positions, seed)
    vectors[sides.position, labels] += 1
    return vectors


def _transfers(name: str, source: str, found: Sequence[Transfer]) -> str:
    accuracy = np.mean([one.accuracy for one in found])
    share = np.mean([one.reversed_share for one in found])
    above = sum(one.interval[0] > 0.5 for one in found)
    below = sum(one.interval[1] < 0.5 for one in found)
    n = len(found)
    return row(
        name, source, f"{accuracy:.1%}", f"{share:.1%}", f"{above} of {n}", f"{below} of {n}"
    )


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The value vectors and the states of all positions of some questions."""

    values: Floats  # (position, head, d_head)
    states: Floats  # (position, d_model)
    question: Integers  # (position,): the index of the question

    @property
    def n_questions(self) -> int:
        """The number of questions."""
        return int(self.question.max()) + 1

    def some(self, count: int, rng: np.random.Generator) -> "Layer":
        """Return this many random questions, renumbered."""
        chosen = np.sort(rng.permutation(self.n_questions)[:count])
        here = np.isin(self.question, chosen)
        return Layer(
            values=self.values[here],
            states=self.states[here],
            question=np.searchsorted(chosen, self.question[here]),
        )

    def error(self, positions: Integers) -> float:
        """Return the error of the paper's protocol at some positions, averaged over heads."""
        states = self.states[positions]
        heads = self.values[positions].swapaxes(0, 1)
        residuals = [states - predict(head, states, head) for head in heads]
        return float(np.square(residuals).mean())


def single_draws(
    layer: Layer, n: int, read: DrawSamples, count: int, rng: np.random.Generator
) -> Floats:
    """Return the errors of single draws of n samples from all questions."""
    errors: list[float] = []
    while len(errors) < count:
        errors += map(layer.error, read(layer.question, n, rng).positions)
    return np.array(errors[:count])


def coverage(
    errors: Floats, few: Iterable[Layer], n: int, read: DrawSamples, rng: np.random.Generator
) -> Floats:
    """Yield the share of errors in the interval from each of several samples of questions."""
    shares = []
    for layer in few:
        found = in_sample(layer.values, layer.states, read(layer.question, n, rng))
        if found.mse_interval is None:
            raise ValueError(f"{layer.n_questions} questions are too few for draws of {n}")
        low, high = found.mse_interval
        shares.append(np.mean((low <= errors) & (errors <= high)))
    return np.array(shares)


def synthetic(world: str, rng: np.random.Generator) -> Layer:
    """Return states of many questions, and values of one head that contain some dimensions."""
    states = rng.standard_normal((ALL_QUESTIONS, POSITIONS_EACH, D_STATE))
    if world != "noise":
        common = rng.standard_normal((ALL_QUESTIONS, 1, D_STATE))
        if world == "heavy tails":
            common *= rng.gamma(2, 0.5, size=(ALL_QUESTIONS, 1, 1))
        states += common
    states = states.reshape(-1, D_STATE)
    told = states[:, None, :D_VALUE]
    return Layer(
        values=told + VALUE_NOISE * rng.standard_normal(told.shape),
        states=states,
        question=np.repeat(np.arange(ALL_QUESTIONS), POSITIONS_EACH),
    )


def draws(sets: int, singles: int) -> Iterator[str]:
    """Print how many single draws are in the interval from a sample of questions."""
    columns = [f"{world}: {reading}" for world in WORLDS for reading in READINGS]
    yield from heading(0, "questions", "n", *columns)
    for n_questions, n in SIZES:
        cells = []
        for number, world in enumerate(WORLDS):
            rng = np.random.default_rng([number, n_questions])
            layer = synthetic(world, rng)
            for read in READINGS.values():
                errors = single_draws(layer, n, read, singles, rng)
                few = (layer.some(n_questions, rng) for _ in range(sets))
                shares = 100 * coverage(errors, few, n, read, rng)
                standard_error = shares.std(ddof=1) / sets**0.5
                cells.append(f"{shares.mean():.1f} ± {standard_error:.1f}")
        yield row(n_questions, n, *cells)


def trained(model: str, data: str, sets: int, singles: int) -> Iterator[str]:
    """Print the same for the output of the last encoder layer of a trained model."""
    store = open_store(data)
    split = store[store.task.test_splits[0]]
    texts, answers = split.rows(list(range(len(split))))
    sample = Sample(questions=tuple(texts), answers=tuple(answers), origin=data)
    loaded = checked_model(tpt.load(model), AnalysisOptions())
    last = f"encoder.{loaded.config.n_layers - 1}"
    names = (f"{last}.self_attention.value", f"{last}.output")
    recording = record(loaded, sample, names)
    values, states = (recording.flat(name).astype(np.float64) for name in names)
    lengths = [len(piece) for piece in recording[names[1]]]
    layer = Layer(values=values, states=states, question=np.repeat(np.arange(len(sample)), lengths))
    yield from heading(
        1, f"{N_PAPER} samples are", "mean error", "2.5% of draws below", "2.5% above", "coverage"
    )
    for name, read in READINGS.items():
        rng = np.random.default_rng(0)
        errors = single_draws(layer, N_PAPER, read, singles, rng)
        few = (layer.some(QUESTIONS, rng) for _ in range(sets))
        held = coverage(errors, few, N_PAPER, read, rng).mean()
        low, high = np.quantile(errors, [0.025, 0.975])
        yield row(name, f"{errors.mean():.3f}", f"{low:.3f}", f"{high:.3f}", f"{held:.1%}")


def main() -> None:
    """Print the requested table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="table", required=True)
    for table, makes, sizes in (
        ("clusters", clusters, {"count": QUESTIONS, "draws": CLUSTER_DRAWS}),
        ("readers", readers, {"count": QUESTIONS}),
        ("reversal", reversal, {"count": QUESTIONS, "draws": VECTOR_DRAWS}),
        ("draws", draws, {"sets": SETS, "singles": SINGLES}),
        ("trained", trained, {"sets": TRAINED_SETS, "singles": SINGLES}),
    ):
        command = commands.add_parser(table, help=makes.__doc__)
        command.set_defaults(makes=makes)
        for name, size in sizes.items():
            command.add_argument(f"--{name}", type=int, default=size)
        if makes is trained:
            command.add_argument("--model", required=True)
            command.add_argument("--data", required=True)
    options = vars(parser.parse_args())
    del options["table"]
    for line in options.pop("makes")(**options):
        print(line, flush=True)


if __name__ == "__main__":
    main()
