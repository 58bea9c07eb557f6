"""Questions whose structure is known, for tests that plant something in them."""

import numpy as np

from tp_transformer.interpret.core.sample import Sample

FORMS = ("({}/{})/({}/{})", "{}/{} - {}*{}", "What is {}/({}*{}) + {}?", "({} - {})/({}/{})")
CHAINS = ("{}/{}*{}/{} - {}", "{} + {}/({}/{}*{})", "({}/{})*{}*({}/{})", "{}/({}/({}*{})*{})")

# Every way to divide four numbers in this order.
QUOTIENTS = (
    *("(({}/{})/{})/{}", "({}/({}/{}))/{}", "({}/{})/({}/{})"),
    *("{}/(({}/{})/{})", "{}/({}/({}/{}))"),
)
# So that places alone tell little.
WORDINGS = ("What is {}?", "Calculate {}.", "Evaluate {}.", "What is the value of {}?", "{}")


def quotients(count: int, seed: int = 0) -> Sample:
    """Quotients of four digits, where only the parentheses say which of them multiply."""
    rng = np.random.default_rng(seed)
    questions = [
        WORDINGS[rng.integers(len(WORDINGS))].format(
            QUOTIENTS[number % len(QUOTIENTS)].format(*rng.integers(2, 10, size=4))
        )
        for number in range(count)
    ]
    return Sample(questions=tuple(questions), answers=("7",) * count, origin=f"{count} quotients")


def sample(count: int, seed: int = 0) -> Sample:
    """Arithmetic questions with numbers of one to three digits; the answers are of no account."""
    rng = np.random.default_rng(seed)
    questions = []
    for number in range(count):
        numbers = [int(rng.integers(1, 10 ** int(rng.integers(1, 4)))) for _ in range(4)]
        questions.append(FORMS[number % len(FORMS)].format(*numbers))
    return Sample(questions=tuple(questions), answers=("7",) * count, origin=f"{count} questions")


def by_length(sample: Sample) -> Sample:
    """The same in the order in which they pass a model, so that planted rows meet their texts."""
    order = sorted(range(len(sample)), key=lambda number: len(sample.questions[number]))
    return sample.some(order)


def nested(count: int, seed: int = 0) -> Sample:
    """Arithmetic questions of four to six numbers, in which the text nearby tells little.

    Parentheses stand around half of the parts. Every third question is a chain in which a numerator
    stands between denominators.
    """
    rng = np.random.default_rng(seed)
    questions = tuple(
        CHAINS[number // 3 % len(CHAINS)].format(*(_numeral(rng) for _ in range(5)))
        if number % 3 == 0
        else _nested(rng, int(rng.integers(4, 7)))
        for number in range(count)
    )
    return Sample(questions=questions, answers=("7",) * count, origin=f"{count} questions")


def _nested(rng: np.random.Generator, n_numbers: int) -> str:
    if n_numbers == 1:
        return _numeral(rng)
    left = int(rng.integers(1, n_numbers))
    parts = [_nested(rng, n) for n in (left, n_numbers - left)]
    for number, part in enumerate(parts):
        if not part.isdigit() and rng.random() < 0.5:
            parts[number] = f"({part})"
    return str(rng.choice([*"//*-+"])).join(parts)


def _numeral(rng: np.random.Generator) -> str:
    return str(rng.integers(1, 10 ** int(rng.integers(1, 4))))
