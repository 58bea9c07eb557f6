"""What users see stays as it is unless a commit says why: texts, settings, folders, files, answers.

`python tests/test_goldens.py` writes the files of `tests/golden/` again. Numbers that depend on the
processor are not compared, but their names and types are.
"""

import contextlib
import html
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from tp_transformer.model import bundled

GOLDEN = Path(__file__).parent / "golden"
TRAIN = [
    *("train", "--config", "tp-transformer-tiny", "--data", "store", "--run", "run"),
    *("--data.batch_size=8", "--validation.every=4", "--validation.count=8", "--threads=1"),
]
QUESTIONS = 1000  # for each bundled model
MOST_OTHER = 5  # answers that may differ between processors


def tpt(*arguments):
    """What `tpt` prints in the working folder, with a fixed width."""
    from tp_transformer.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([str(argument) for argument in arguments])
    return printed.getvalue()


def helps():
    """The help of `tpt` and of each verb."""
    from commands import verbs

    names = [(), *(name for name, _ in verbs())]
    return "\n".join(f"$ tpt {' '.join(name)} --help\n{tpt(*name, '--help')}" for name in names)


def configs():
    """The settings of each preset."""
    from tp_transformer.settings import preset_names

    given = ["--data", "store", "--run", "run", "--print_config"]
    return "\n".join(
        f"# {name}\n{tpt('train', '--config', name, *given)}" for name in preset_names()
    )


def tree(folder):
    """The files and links of a folder; which checkpoint is the best depends on the processor."""
    lines = []
    for path in sorted(Path(folder).rglob("*")):
        link = f" -> {os.readlink(path)}" if path.is_symlink() else ""
        line = f"{path.relative_to(folder)}{'/' if path.is_dir() else ''}{link}"
        lines.append(re.sub(r"(best-models)/step-\d+", r"\1/step-N", line))
    return "\n".join(dict.fromkeys(lines)) + "\n"


def schema(value, path=""):
    """The names and types of a JSON value, one on each line; lists by their first element."""
    if isinstance(value, dict):
        return [line for key in value for line in schema(value[key], f"{path}.{key}")]
    if isinstance(value, list) and value:
        return schema(value[0], f"{path}[]")
    return [f"{path}: {type(value).__name__}"]


def of_file(file):
    return "\n".join(schema(json.loads(Path(file).read_text("utf-8")))) + "\n"


def folders():
    """A store, a run that is started and extended, its results, and an analysis."""
    tpt("data", "generate", "--task", "lookup", "--out", "store", "--seed", 3)
    made = {"store.txt": of_file("store/store.json")}
    made["run-configured.yaml"] = tpt(*TRAIN, "--print_config")
    tpt(*TRAIN, "--training.steps=4")
    made["run-started.txt"] = tree("run")
    tpt(*TRAIN, "--training.steps=6")
    made["run-extended.txt"] = tree("run")
    tpt("evaluate", "--model", "run", "--data", "store", "--out", "results.json")
    made["results.txt"] = of_file("results.json")
    return made


def analyses():
    """The results of all analyses of the bundled model, of a few questions."""
    from tp_transformer.interpret.analyses import ANALYSES

    for name in ANALYSES:
        tpt("interpret", name, "--out", "analyses", "--count", 24)
    return {f"{file.stem}.analysis.txt": of_file(file) for file in Path("analyses").glob("*.json")}


def report():
    """The text of a report of runs, results, analyses and a bench that nothing computed."""
    from reports import write_analysis, write_run

    write_run(Path("runs/one"))
    write_analysis(Path("analyses"))
    tpt("report", "runs", "analyses", "--out", "report.html")
    page = Path("report.html").read_text("utf-8")
    page = re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)
    lines = (html.unescape(line).strip() for line in re.sub(r"<[^>]*>", "\n", page).splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def answers(name, engine=True):
    """The answers of a bundled model to questions of its modules."""
    import tp_transformer as tpt
    from tp_transformer.data.mathematics.modules import MODULE_NAMES

    arithmetic = [module for module in MODULE_NAMES if module.startswith("arithmetic__")]
    count = -(-QUESTIONS // len(arithmetic))
    examples = tpt.data.generate(arithmetic, split="interpolate", count=count, seed=5)
    questions = [example.question for example in examples][:QUESTIONS]
    model = tpt.load(name)
    if not engine:
        model.engine = None
    return "\n".join(model.solve(questions)) + "\n"


def written(folder):
    """The texts of goldens that take seconds, by the names of their files."""
    texts = {"help.txt": helps(), "configs.txt": configs()}
    with contextlib.chdir(folder):
        return {**texts, **folders(), "report.txt": report()}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        return written(tmp_path_factory.mktemp("goldens"))


FILES = [file.name for file in sorted(GOLDEN.iterdir())]
NAMES = [name for name in FILES if not name.startswith("answers-") and "analysis" not in name]


@pytest.mark.parametrize("name", NAMES)
def test_what_users_see_is_as_before(texts, name):
    assert texts[name] == (GOLDEN / name).read_text("utf-8")


def test_there_is_a_golden_of_each_text(texts):
    assert sorted(texts) == NAMES


@pytest.mark.slow
def test_analyses_have_the_same_fields_as_before(tmp_path):
    with contextlib.chdir(tmp_path):
        found = analyses()
    assert sorted(found) == [name for name in FILES if "analysis" in name]
    for name, text in found.items():
        assert text == (GOLDEN / name).read_text("utf-8")


@pytest.mark.parametrize("engine", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", bundled.names())
def test_the_bundled_models_answer_as_before(name, engine):
    before = (GOLDEN / f"answers-{name}.txt").read_text("utf-8").splitlines()
    now = answers(name, engine).splitlines()
    assert len(now) == len(before)
    assert sum(a != b for a, b in zip(now, before, strict=True)) <= MOST_OTHER


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent / "support"))
    os.environ["COLUMNS"] = "100"
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        texts = written(folder)
        with contextlib.chdir(folder):
            texts |= analyses()
        for name, text in texts.items():
            (GOLDEN / name).write_text(text, "utf-8")
    for name in bundled.names():
        (GOLDEN / f"answers-{name}.txt").write_text(answers(name), "utf-8")
