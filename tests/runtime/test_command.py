"""Recorded commands: the command line parses them to the settings they were made from."""

import shlex
from pathlib import Path

import pytest

from tp_transformer.cli import parse
from tp_transformer.interpret.analyses import ANALYSES, AnalysisRequest, StoreRequest
from tp_transformer.runtime.provenance import command_line
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.verbs.study import Bench


@pytest.mark.parametrize(
    ("choice", "work"),
    [
        (QuestionChoice(), EvaluationOptions()),
        (
            QuestionChoice(modules=("a b", "c*"), splits=("train",), train_count=7, seed=3),
            EvaluationOptions(
                overwrite=True, precision="bfloat16", predictions=Path("p q.jsonl"), diagnose=0
            ),
        ),
    ],
)
def test_a_command_of_an_evaluation_is_parsed_to_its_settings(choice, work):
    where = {"model": Path("my runs/a"), "data": Path("d"), "out": Path("r.json")}
    words = shlex.split(command_line("evaluate", choice, work, **where, device=None))
    verb = parse(words[1:])
    assert (verb.choice, verb.work) == (choice, work)
    assert (verb.model, verb.data, verb.out) == tuple(where.values())
    assert verb.device == "auto"


@pytest.mark.parametrize("name", ANALYSES)
def test_a_command_of_an_analysis_is_parsed_to_its_settings(name):
    analysis = ANALYSES[name]
    own = {"model": Path("a"), "count": 5, "seed": 9}
    if not analysis.needs_store:
        request = AnalysisRequest(**own)
    else:
        request = StoreRequest(**own, data=Path("d"), module="m", answered=False)
    options = analysis.options(layer=-2)
    line = command_line(f"interpret {name}", request, options, out=Path("o"), caption=False)
    verb = parse(shlex.split(line)[1:])
    assert (verb.request, verb.options) == (request, options)
    assert (verb.out, verb.caption) == (Path("o"), False)


def test_a_command_of_a_bench_is_parsed_to_itself():
    verb = Bench(out=Path("o p"), tasks=("scan",), seeds=(1,), bindings=("none",), tabulate=True)
    assert parse(shlex.split(command_line("bench", verb))[1:]) == verb


def test_defaults_and_what_is_none_are_left_out():
    assert command_line(
        "evaluate", QuestionChoice(), EvaluationOptions(), data="d", device=None
    ) == ("tpt evaluate --data d")
