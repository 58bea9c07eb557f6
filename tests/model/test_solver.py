"""`tpt solve`: where questions come from, in what order answers come, what bad lines do."""

import io
import json
import os
import select
import subprocess
import sys

import pytest

import tp_transformer as tpt
from tp_transformer.cli import main
from tp_transformer.model import solver as solving
from tp_transformer.model.solver import Answer, Solver

GOOD = ["What is 3 + 4?", "Hi", "Let p be 12.", "Is 7 prime?"]
BAD = ["", "caf\u00e9", "1" * 199]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("solving") / "model"
    tpt.build("tp-transformer-tiny").double().save(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return tpt.load(folder)


def run(capsys, *arguments):
    code = 0
    try:
        main(["solve", *map(str, arguments)])
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def feed(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("where", ["arguments", "file", "standard input"])
def test_answers_in_order_wherever_the_questions_come_from(
    where, capsys, folder, model, tmp_path, monkeypatch
):
    arguments = []
    data = "\n".join(GOOD).encode()  # the last line has no end
    if where == "arguments":
        arguments = GOOD
    elif where == "file":
        file = tmp_path / "questions.txt"
        file.write_bytes(data)
        arguments = ["--file", file]
    else:
        feed(monkeypatch, data)
    code, out, err = run(capsys, *arguments, "--model", folder)
    assert (code, err) == (0, "")
    assert out.split("\n") == [*model.solve(GOOD), ""]


def test_lines_are_lines_however_they_end_and_arrive(monkeypatch):
    monkeypatch.setattr(solving, "READ_AT_ONCE", 3)
    stream = io.BytesIO(b"\xef\xbb\xbfone\r\ntwo\n\nthree\n")  # after a byte order mark
    assert [line for some in solving.lines(stream) for line in some] == ["one", "two", "", "three"]


def test_many_questions_are_answered_in_portions_that_grow(folder, model, monkeypatch):
    questions = [f"What is {n} + {n}?" for n in range(100)]
    sizes = []
    read = Solver.read

    def counted(self, texts, *rest):
        sizes.append(len(texts))
        return read(self, texts, *rest)

    monkeypatch.setattr(Solver, "read", counted)
    options = {"noun": "line", "max_length": 3}
    for is_scored in (True, False):
        sizes.clear()
        solved = list(solving.solve_each(model, [questions], is_scored=is_scored, **options))
        assert sizes == [16, 32, 52]  # each question is read once
        assert [each.question for each in solved] == questions
        assert [each.text for each in solved] == model.solve(questions, max_length=3)
        assert all(bool(each.answers) == is_scored for each in solved)


def test_bad_lines_are_named_and_the_others_answered(capsys, folder, model, monkeypatch):
    feed(monkeypatch, "\n".join([GOOD[0], *BAD, GOOD[1]]).encode() + b"\n\xff\n")
    code, out, err = run(capsys, "--model", folder)
    assert code == 2
    first, second = model.solve(GOOD[:2])
    assert out.split("\n") == [first, "", "", "", second, "", ""]  # a line for each, as for `paste`
    empty, character, long, no_text = err.splitlines()
    assert empty == "tpt: line 2 is empty"
    assert character.startswith("tpt: line 3: character '\u00e9' at position 4 is not one")
    assert long == "tpt: line 4 has 199 characters; the model reads at most 198"
    assert no_text.startswith("tpt: line 6: character '\\udcff' at position 1 is not one")


def test_json_has_an_object_for_every_line(capsys, folder, model):
    questions = [GOOD[0], *BAD, GOOD[1]]
    code, out, err = run(capsys, *questions, "--model", folder, "--json", "--n-best", 3)
    assert (code, err) == (2, "")
    objects = [json.loads(line) for line in out.splitlines()]
    assert [one["question"] for one in objects] == questions
    assert objects[1] == {"question": "", "error": "question 2 is empty"}
    assert all("error" in one and "answers" not in one for one in objects[1:4])
    expected = Solver(model).answers(GOOD[:2], beam=3)
    for one, answers in zip((objects[0], objects[4]), expected, strict=True):
        assert [answer["text"] for answer in one["answers"]] == [each.text for each in answers]
        for answer, each in zip(one["answers"], answers, strict=True):
            assert answer["score"] == pytest.approx(each.score)
            assert answer["log_probability"] == pytest.approx(each.log_probability)
            assert answer["is_complete"] == each.is_complete


def test_several_answers_come_with_their_scores(capsys, folder, model):
    options = ["--model", folder, "--n-best", 2, "--beam", 4, "--length-penalty", 1]
    code, out, _ = run(capsys, *GOOD[:2], *options)
    assert code == 0
    expected = Solver(model).answers(GOOD[:2], beam=4, n_best=2, length_penalty=1.0)
    blocks = out.removesuffix("\n\n").split("\n\n")
    for block, answers in zip(blocks, expected, strict=True):
        assert block.split("\n") == [f"{each.score:.4f}\t{each.text}" for each in answers]


def test_the_layout_is_by_what_was_asked_for(capsys, folder, monkeypatch):
    """Of several answers only one may be found, and a bad line has none."""
    only = Answer(text="7", log_probability=-0.5, score=-0.5, is_complete=True)
    monkeypatch.setattr(Solver, "best", lambda self, rows, *_, **__: [[only]] * len(rows.lengths))
    monkeypatch.setattr(Solver, "greedy", lambda self, rows, _: ["7"] * len(rows.lengths))
    _, out, _ = run(capsys, GOOD[0], "", GOOD[1], "--model", folder, "--n-best", 2)
    assert out == "-0.5000\t7\n\n\n-0.5000\t7\n\n"
    _, out, _ = run(capsys, GOOD[0], "", GOOD[1], "--model", folder)
    assert out == "7\n\n7\n"


def test_answers_before_the_end_of_input(folder):
    """Who types a question sees its answer, and then types the next."""
    command = [sys.executable, "-m", "tp_transformer", "solve", "--model", folder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        for question, answer in zip(GOOD[:2], tpt.load(folder).solve(GOOD[:2]), strict=True):
            process.stdin.write(f"{question}\n".encode())
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 60)[0], "no answer"
            assert process.stdout.readline().decode() == f"{answer}\n"
        process.stdin.close()
        assert process.wait(60) == 0


def test_words_that_look_like_something_else_are_questions(capsys, folder, model):
    questions = ["null", "1", "1.5", "{a}", "-3 + 4", "true", "a: 1"]
    code, out, _ = run(capsys, *questions, "--model", folder)
    assert code == 0
    assert out.split("\n") == [*model.solve(questions), ""]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1 + 1", "--model", "nowhere"], "nowhere"),
        (["1 + 1", "--model", "FOLDER", "--beam", "2", "--n-best", "3"], "1 to 2 answers"),
        (["1 + 1", "--model", "FOLDER", "--beam", "0"], "--beam must be from 1 to 100, not 0"),
        (["1 + 1", "--model", "FOLDER", "--beam", "100000", "--n-best", "2"], "from 1 to 100"),
        (["1 + 1", "--model", "FOLDER", "--n-best", "101"], "--n-best must be from 1 to 100"),
        (["1 + 1", "--model", "FOLDER", "--beam", "3", "--length-penalty", "1000"], "not 1000"),
        (["1 + 1", "--model", "FOLDER", "--length-penalty", "-1"], "--length-penalty must be"),
        (["1 + 1", "--model", "FOLDER", "--max-length", "201"], "answers of 201"),
        (["1 + 1", "--model", "FOLDER", "--file", "x"], "not both"),
        (["--model", "FOLDER", "--file", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(capsys, folder, arguments, message):
    code, out, err = run(capsys, *[folder if word == "FOLDER" else word for word in arguments])
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("tpt: ")
    assert err.count("\n") == 1
