"""One decoding step with static shapes: eager, by torch.compile, by AOTInductor and by C kernels.

    python benchmarks/compile_step.py

`tp-transformer-small` with random weights in float32 on one thread reads a question of 98
characters and runs the ninth step of its answer again and again. All write keys and values into
buffers that exist already, except the kernels, whose cache grows in this step. "PyTorch" is the
decoder as it runs without the kernels. A compiled step has the lengths of question and answer as
constants, so that each step of each length would have to be compiled. "Frozen" weights are
constants too, which `max-autotune` needs to choose among products on a CPU. AOTInductor writes the
step to a file; its functions are in `torch._inductor`, which is documented, but has no public name.
Times are medians of the processor time of calls, after a check that all compute the same logits.
Compilation is in seconds of the clock, because the compiler is another process; each is by a new
process, whose cache has at most precompiled headers. Needs a C++ compiler. Writes a dated JSON and
Markdown file.
"""

import copy
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import measured
import torch
from torch import Tensor, nn

import tp_transformer as tpt
from tp_transformer.foundation import native
from tp_transformer.foundation.allocator import keep_freed_memory
from tp_transformer.model.transformer import DecoderState

PRESET, N_CHARACTERS, N_STEPS, POSITION = "tp-transformer-small", 98, 16, 8
# Ways to compile, with their options.
COMPILED: dict[str, dict[str, bool]] = {
    "torch.compile": {},
    "torch.compile, max-autotune": {"max_autotune": True},
    "torch.compile, max-autotune, frozen": {"max_autotune": True, "freezing": True},
}
AHEAD = "AOTInductor"
ROUNDS, CALLS = 40, 10  # of a contestant in a row; the first of them may find other data in caches


@dataclass
class FixedCache:
    """Buffers of keys and values (batch, head, step, d_head) of a layer, filled up to `length`.

    The length stays the same, so that a step can be repeated.
    """

    keys: Tensor
    values: Tensor
    length: int

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of the next position; return those of all positions."""
        end = self.length + 1
        self.keys[:, :, self.length : end] = key
        self.values[:, :, self.length : end] = value
        return self.keys[:, :, :end], self.values[:, :, :end]


class Step(nn.Module):
    """The ninth step as a module, which can be exported."""

    def __init__(self, model: Any, state: DecoderState) -> None:
        super().__init__()
        self.model, self.n_layers = model, len(state.memory)
        for layer, (memory, cache) in enumerate(zip(state.memory, state.caches, strict=True)):
            for name, tensor in zip("kvKV", (*memory, cache.keys, cache.values), strict=True):
                self.register_buffer(f"{name}{layer}", tensor.clone())

    def forward(self, previous: Tensor) -> Tensor:
        """Return the logits after a token."""
        k, v, keys, values = (
            [getattr(self, f"{name}{layer}") for layer in range(self.n_layers)] for name in "kvKV"
        )
        caches = [FixedCache(*buffers, POSITION) for buffers in zip(keys, values, strict=True)]
        state = self.model.resume(list(zip(k, v, strict=True)), None, caches)
        return self.model.step(previous, state)


@dataclass
class Contestant:
    """A way to compute the step, and its times."""

    name: str
    step: Callable[[], Tensor]
    reset: Callable[[], None] = lambda: None  # before each call, not timed
    compilation: float | None = None
    seconds: list[float] = field(default_factory=list)


def eager_and_kernels(model: Any, tokens: list[Tensor]) -> tuple[DecoderState, list[Contestant]]:
    """Return the state before the ninth step, and the two ways of the model to compute it."""
    vocabulary = model.vocabulary
    rows = vocabulary.encode(["1" * N_CHARACTERS])
    source, layout = model.layout_for(torch.device("cpu"), n_rows=1).lay_out(rows, vocabulary.pad)
    memory = model.encode(source, layout)
    fused = model.begin(memory, N_STEPS)
    library, native.library = native.library, lambda: None
    plain = model.begin(memory, N_STEPS)
    native.library = library
    if isinstance(fused, DecoderState) or not isinstance(plain, DecoderState):
        raise RuntimeError("the kernels are not compiled: python hatch_build.py")
    config = model.config
    shape = (1, config.n_heads, N_STEPS, config.d_model // config.n_heads)
    buffers = [(torch.zeros(shape), torch.zeros(shape)) for _ in plain.memory]
    for position, token in enumerate(tokens):
        plain.caches = [FixedCache(*layer, position) for layer in buffers]
        model.step(token, plain)
        if position < POSITION:
            model.step(token, fused)
    state = fused

    def reset() -> None:
        nonlocal state
        state = copy.copy(fused)  # a step changes its state

    return plain, [
        Contestant("PyTorch", lambda: model.step(tokens[-1], plain)),
        Contestant("C kernels", lambda: model.step(tokens[-1], state), reset),
    ]


def prepared() -> tuple[Tensor, Step, list[Contestant]]:
    """Return the token before the ninth step, the step as a module, and the ways of the model."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = tpt.build(PRESET).eval()
    tokens = [torch.tensor([3 + position]) for position in range(POSITION + 1)]
    state, found = eager_and_kernels(model, tokens)
    return tokens[-1], Step(model, state), found


def compiled(name: str, module: Step, token: Tensor, folder: Path) -> Callable[[Tensor], Tensor]:
    """Return the step after compilation, or from the folder if it was compiled there before."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    file = folder / "step.pt2"
    if name != AHEAD:
        step = torch.compile(module, fullgraph=True, dynamic=False, options=COMPILED[name])
        step(token)
        return step
    if not file.exists():
        exported = torch.export.export(module, (token,))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(file))
    return torch._inductor.aoti_load_package(str(file))


@torch.no_grad()
def compilation(name: str, folder: Path) -> float:
    """Return the seconds of a compilation."""
    token, module, _ = prepared()
    start = time.perf_counter()
    compiled(name, module, token, folder)
    return time.perf_counter() - start


def contestants_of(folder: Path) -> list[Contestant]:
    """Return all ways to compute the step."""
    token, module, (eager, kernels) = prepared()
    found = [eager]
    for number, name in enumerate((*COMPILED, AHEAD)):
        own = folder / str(number)  # torch does not quote the path for the compiler
        own.mkdir()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            seconds = process.submit(compilation, name, own).result()
        step = compiled(name, copy.deepcopy(module), token, own)
        found.append(Contestant(name, partial(step, token), compilation=seconds))
    return [*found, kernels]


def race(contestants: list[Contestant]) -> None:
    """Run all in turn, after a check that they compute the same."""
    expected = contestants[0].step()
    for contestant in contestants:
        contestant.reset()
        torch.testing.assert_close(contestant.step(), expected, atol=1e-4, rtol=1e-4)
    for _ in range(ROUNDS):
        for contestant in contestants:
            for _ in range(CALLS):
                contestant.reset()
                start = measured.clock()
                contestant.step()
                contestant.seconds.append(measured.clock() - start)


def report(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# One decoding step with static shapes, {result['date']}",
        "",
        f"{measured.described(result['machine'])}; float32, one thread.",
        f"`{PRESET}`, a question of {N_CHARACTERS} characters, step {POSITION + 1}; medians of "
        f"{ROUNDS * CALLS} calls.",
        "",
        "| | processor time of a step (ms) | times PyTorch | compilation (s) |",
        "|---|---:|---:|---:|",
    ]
    first = result["steps"][0]["milliseconds"]
    for one in result["steps"]:
        time_spent, seconds = one["milliseconds"], one["compilation"]
        lines.append(
            f"| {one['name']} | {time_spent:.2f} | {first / time_spent:.2f} "
            f"| {'' if seconds is None else f'{seconds:.0f}'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write the results."""
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        contestants = contestants_of(Path(folder))
        race(contestants)
    steps = [
        {
            "name": one.name,
            "milliseconds": 1000 * statistics.median(one.seconds),
            "compilation": one.compilation,
        }
        for one in contestants
    ]
    result = {"date": date.today().isoformat(), "machine": measured.machine(), "steps": steps}
    measured.publish("compile-step", result, report(result))


if __name__ == "__main__":
    main()
