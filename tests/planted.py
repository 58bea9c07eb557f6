"""Questions whose structure is known, for tests that plant something in them."""

import numpy as np

from tp_transformer.interpret.record import Sample

FORMS = ("({}/{})/({}/{})", "{}/{} - {}*{}", "What is {}/({}*{}) + {}?", "({} - {})/({}/{})")

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
