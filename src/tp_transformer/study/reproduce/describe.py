"""The plan of a reproduction as text; for the paper's size, also on GPUs."""

import shlex
from collections.abc import Iterator

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tp_transformer.study.reproduce.bands import read_band
from tp_transformer.study.reproduce.plan import SECONDS, ReproductionPlan
from tp_transformer.study.reproduce.run import Reproduction
from tp_transformer.study.reproduce.scale import PAPER, ScaleRow
from tp_transformer.training.plan import GPUS_PER_MACHINE, Launch, size_text

# Dense operations per second in bfloat16 with sums in float32, from NVIDIA's data sheets.
GPUS = {"A100": 312e12, "H100 SXM": 989e12, "RTX 4090": 165e12}
# The assumed share of them that a model of the paper's size reaches; never measured.
UTILISATION = (0.2, 0.4)


def render_plan(work: Reproduction, plan: ReproductionPlan, console: Console) -> None:
    """Print a plan."""
    for line in _lines(work, plan):
        console.print(Text(line), soft_wrap=True)
    console.print()
    console.print(_table(plan))
    if work.scale.name == PAPER.name:
        _render_gpus(work, plan, console)


def _lines(work: Reproduction, plan: ReproductionPlan) -> Iterator[str]:
    scale, first = work.scale, plan.rows[0]
    seeds = " ".join(map(str, scale.seeds))
    n_left = sum(left > 0 for row in plan.rows for left in row.steps_left)
    yield f"scale    {scale.name}: {len(plan.rows)} rows of Table 1, seeds {seeds}"
    yield f"runs     {n_left} of {len(work.runs())} left, {plan.at_once} at a time"
    if plan.n_questions:
        yield f"data     {plan.n_questions:,} questions to generate, {plan.n_tests:,} of them tests"
    elif plan.n_tests:
        yield f"data     {work.store}, {plan.n_tests:,} test questions"
    else:
        yield "data     the published questions, prepared with `tpt data prepare`: --data DIR"
    times = {"train": plan.training_seconds, "generate questions": plan.generation_seconds}
    times["score"] = plan.scoring_seconds
    spent = [f"{about(seconds)} to {what}" for what, seconds in times.items() if seconds]
    yield f"time     {', '.join(spent) or 'nothing left'}; without analyses and the report"
    sample = ", on a sample of generated questions" if plan.is_sample else ""
    is_smaller = any(row.measured_batch < row.batch_size for row in plan.rows)
    batches = ", in smaller batches and float32" if is_smaller else ""
    yield (
        f"         measured for {SECONDS:.0f} s on {first.measured.where}{sample}{batches}, at the "
        "present load of this machine"
    )
    memory = "unknown" if plan.memory is None else f"at least {size_text(plan.memory)}"
    yield f"memory   {memory}"
    yield f"disk     {size_text(plan.disk)}; {size_text(first.measured.free_bytes)} are free"
    band = read_band(scale.name)
    yield f"band     {'not measured yet' if band is None else f'measured {band.source}'}"


def _table(plan: ReproductionPlan) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("row", no_wrap=True)
    heads = ("parameters", "steps", "batch", "GFLOP/step", "s/step", "time/run")
    for head in heads:
        table.add_column(head, justify="right")
    for row in plan.rows:
        table.add_row(
            row.name,
            f"{row.measured.n_parameters:,}",
            f"{row.steps:,}",
            f"{row.batch_size:,}",
            _rounded(row.flops / 1e9),
            _rounded(row.step_seconds),
            about(row.steps * row.step_seconds),
        )
    return table


def about(seconds: float) -> str:
    """Format an estimated duration, such as 50 s, 12 min, 9.5 h, 12 days or 1.2 years."""
    units = {"s": 1, "min": 60, "h": 3600, "days": 86400, "years": 365 * 86400}
    unit = next((unit for unit, size in units.items() if seconds < 100 * size), "years")
    return f"{_rounded(seconds / units[unit])} {unit}"


def _rounded(value: float) -> str:
    """Format a number with two digits at least, and no exponent."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _render_gpus(work: Reproduction, plan: ReproductionPlan, console: Console) -> None:
    """Print hours on GPUs and the command lines for them."""
    console.print()
    console.print(Rule(Text("On GPUs", style="bold"), align="left"))
    console.print(_hours(plan))
    for line in assumptions(plan):
        console.print(Text(line), soft_wrap=True)
    launches = [launch(work, row) for row in work.scale.rows]
    again = shlex.join(_again(work))
    for title, lines in (
        (f"{GPUS_PER_MACHINE} GPUs of one machine", [one.one_machine() for one in launches]),
        ("Two machines: the same command on both", [one.machines() for one in launches]),
        ("Slurm: this script for each row, with its --config and --run", [launches[0].slurm()]),
        ("Then, to score, interpret and report", [again]),
    ):
        console.print()
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(Text(line), soft_wrap=True)


def _hours(plan: ReproductionPlan) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("hours", no_wrap=True)
    table.add_column("FLOP of a run", justify="right")
    for gpu in GPUS:
        table.add_column(f"{GPUS_PER_MACHINE} x {gpu}", justify="right")
    flops = {row.name: row.run_flops for row in plan.rows}
    for name, operations in {**flops, "all rows": sum(flops.values())}.items():
        cells = []
        for peak in GPUS.values():
            most, least = (hours(operations, peak, share) for share in UTILISATION)
            cells.append(f"{_rounded(least)} to {_rounded(most)}")
        table.add_row(name, f"{operations:.2e}", *cells)
    return table


def hours(flops: float, peak: float, utilisation: float) -> float:
    """Return the hours of so many operations on the GPUs of one machine."""
    return flops / (GPUS_PER_MACHINE * peak * utilisation) / 3600


def assumptions(plan: ReproductionPlan) -> list[str]:
    """Return what the hours on GPUs rest on."""
    low, high = UTILISATION
    peaks = ", ".join(f"{name} {peak / 1e12:.0f}" for name, peak in GPUS.items())
    return [
        "Assumptions:",
        "- FLOP are the multiplications and additions of matrix products in the forward and the "
        f"backward pass, without padding, for {plan.source_tokens:.0f} tokens of a question and "
        f"{plan.target_tokens:.0f} of an answer on average, start and end included.",
        f"- The GPUs reach {low:.0%} to {high:.0%} of their peak in bfloat16 (TFLOPS of the data "
        f"sheets: {peaks}). This share was never measured on GPUs.",
        "- The LSTM, whose steps follow each other, is likely to reach less.",
        "- Validations, checkpoints, scores and analyses are not included.",
    ]


def launch(work: Reproduction, row: ScaleRow) -> Launch:
    """Return how to train the first seed of a row on GPUs, in the folder of the reproduction."""
    seed = work.scale.seeds[0]
    return Launch(
        config=row.preset,
        data=str(work.data or "math"),
        run=str(work.run_folder(row, seed)),
        options=work.scale.options(row, seed),
    )


def _again(work: Reproduction) -> list[str]:
    data = str(work.data or "math")
    return ["tpt", "reproduce", "--scale", work.scale.name, "--data", data, "--out", str(work.out)]
