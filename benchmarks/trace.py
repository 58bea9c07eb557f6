"""Cost of the trace points while nothing is traced.

Answers one question at a time with the smallest model, for which overhead matters most, alternately
with and without the trace points, and prints the ratio of the medians.
"""

import statistics
import time

import torch

import tp_transformer as tpt
from tp_transformer.model.trace import Traced

QUESTION = ["What is the first derivative of 13*a**2 - 627434*a + 11914106?"]


def seconds(model: tpt.Transformer) -> float:
    """Return the time of one answer of 30 tokens."""
    start = time.perf_counter()
    model.solve(QUESTION)
    return time.perf_counter() - start


def main(repeats: int = 200) -> None:
    """Measure both in turn and print the result."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the tensors are too small for more threads
    model = tpt.build("tp-transformer-tiny").eval()
    with_points = Traced.point
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(repeats):
        times["with"].append(seconds(model))
        Traced.point = lambda self, name, tensor: tensor  # type: ignore[method-assign]
        times["without"].append(seconds(model))
        Traced.point = with_points  # type: ignore[method-assign]
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"with points {medians['with'] * 1e3:.2f} ms, without {medians['without'] * 1e3:.2f} ms")
    print(f"ratio {medians['with'] / medians['without']:.3f}")


if __name__ == "__main__":
    main()
