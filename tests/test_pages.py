"""Every command and every Python snippet of the pages runs, at toy size.

The blocks of a page run one after another in a folder that has what the pages assume: stores, runs
and results of toy models. What is made smaller is in `smaller`. The pages of `OWN_TESTS` have tests
of their own; `ELSEWHERE` names those of commands that need minutes, GPUs or a browser.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

import reference
from commands import check_torchrun
from documents import PAGES, ROOT, blocks, commands
from interop.test_authors import SIZES, authors_names, dump_checkpoint, dump_vocab
from tp_transformer.cli import main
from tp_transformer.data.vocabulary import CHARACTERS

OWN_TESTS = {"huggingface.md", "onnx.md", "own-data.md", "python.md"}
ELSEWHERE = {
    "bench": "tests/study/test_bench.py",
    "reproduce": "tests/study/test_reproduce.py",
    "explore": "tests/report/explorer/test_explore.py",  # without --out: a server
}
# Pages whose snippets register something, which must not stay registered in this process.
REGISTERING = {"extending.md", "new-analysis.md", "new-binding.md"}
TOY = """
model: {d_model: 16, d_ff: 16, n_heads: 8, n_layers: 3}
data: {batch_size: 8}
training: {steps: 4, log_every: 2}
validation: {every: 2, count: 8}
"""
MODULES = ("arithmetic__mixed", "numbers__place_value")
MAKERS = {  # the files that pages tell the reader to save, by a word of their content
    "shifted.py": "@BINDINGS.register",
    "norms.py": "NormsOptions",
}


def steps(page):
    """The console and Python blocks of a page in their order: (language, content)."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [(language, text) for language, text in found if language in {"console", "python"}]


RUN = [page for page in PAGES if page.name not in OWN_TESTS and steps(page)]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with the stores, runs and results that the pages assume."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "toy.yaml").write_text(TOY, "utf-8")
    (folder / "plain.yaml").write_text(TOY.replace("model: {", "model: {binding: none, "), "utf-8")
    (folder / "questions.txt").write_text("What is 3 + 4?\nIs 7 prime?\n", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sizes = ["--count=20", "--test-count=16", "--workers=1"]
        main(["data", "generate", "--out=math", "--modules", *MODULES, *sizes])
        main(["data", "export", "math", "--format=v1.0", "--out=mathematics_dataset-v1.0"])
        with tarfile.open("mathematics_dataset-v1.0.tar.gz", "w:gz") as archive:
            archive.add("mathematics_dataset-v1.0")
        for store in ("digits", "tests"):
            shutil.copytree("math", store)
        for run, config in (("first", "toy"), ("tp", "toy"), ("plain", "plain"), ("digits", "toy")):
            main(["train", f"--config={config}.yaml", "--data=math", f"--run=runs/{run}"])
            seeds = ["--seeds", "0", "1", "2"] if run in {"tp", "plain"} else None
            if seeds:
                main(["train", f"--config={config}.yaml", "--data=math", f"--run=s/{run}", *seeds])
        main(["data", "generate", "--task=quotients", "--out=quotients"])
        main(["train", "--config=toy.yaml", "--data=quotients", "--run=runs/quotients"])
        for name, model in (("first", "first"), ("second", "plain")):
            main(["evaluate", f"--model=runs/{model}", "--data=math", f"--out={name}.json"])
        main(["interpret", "binding", "--model=runs/quotients", "--out=analysis", "--count=10"])
        shutil.copytree("analysis", "results")
        write_authors()
    return folder


def write_authors():
    """Files in the layout of the authors' checkpoints, with the characters of the dataset."""
    tokens = ["<unk>", "<pad>", "<sos>", "<eos>", *CHARACTERS]
    drawn = reference.random_parameters(
        **{**SIZES, "d_model": 16, "n_heads": 8, "embedding_binding": True},
        n_vocab=len(tokens),
        binding="hadamard",
        generator=torch.Generator().manual_seed(0),
    )
    weights = {name: tensor.float() for name, tensor in drawn.items()}
    Path("checkpoint.pt").write_bytes(dump_checkpoint(authors_names(weights)))
    Path("vocab.pt").write_bytes(dump_vocab(tokens))


def smaller(words):
    """The arguments of `tpt` at toy size."""
    text = " ".join(words)
    words = [re.sub(r"^--training\.steps=\d+$", "--training.steps=4", word) for word in words]
    for option, value in (("--count", "20"), ("--test-count", "16"), ("--config", "toy.yaml")):
        if option in words and words[0] != "interpret":
            words[words.index(option) + 1] = value
    if "--init-from tp-transformer-small" in text:  # of this size
        words[words.index("--config") + 1] = "tp-transformer-small"
        words += ["--training.steps=2", "--data.batch_size=4", "--validation.count=4"]
    if text.startswith("data generate") and "--task" not in text:
        words += ["--workers=1", *([] if "--modules" in words else ["--modules", *MODULES])]
    if words[0] == "interpret":
        words += ["--count=12"]
        words += [] if words[1] in {"binding", "interchange"} else ["--answered=false"]
    if words[0] == "bench":
        words += ["--budget=64", "--seeds", "0", "--processes=1"]
    if words[0] == "bundle":
        words += ["--out=bundled"]
    return [*words, *(["--overwrite"] if words[0] == "evaluate" else [])]


def made_by(words):
    """The store or run that a command makes, which must not be there before."""
    if words[:2] in (["data", "generate"], ["data", "prepare"]):
        return words[words.index("--out") + 1]
    return words[words.index("--run") + 1] if {"--config", "--run"} <= set(words) else None


def run_command(words):
    """Run one command of a page, if it can be run here."""
    variables = dict([words[0].split("=")]) if "=" in words[0] else {}
    program, *arguments = words[len(variables) :]
    if program == "torchrun":
        check_torchrun(arguments)
        if "--nproc-per-node=2" in arguments:
            start = arguments.index("tp_transformer") + 1
            toy = [*arguments[:start], *smaller(arguments[start:])]
            process(["-m", "torch.distributed.run", *toy], variables)
    elif program == "tpt" and variables:
        process(["-m", "tp_transformer", *smaller(arguments)], variables)
    elif program == "tpt" and not is_elsewhere(arguments):
        main(smaller(arguments))
    else:  # installs, builds, or is run by the tests of benchmarks and experiments
        assert program in {"make", "pip", "docker", "python", "tpt"}


def is_elsewhere(arguments):
    """Whether other tests run this command: a server, a study, or no verb."""
    if arguments[0] == "explore" and "--out" in arguments:
        return False
    return arguments[0] in ELSEWHERE or arguments[0].startswith("-")


def process(arguments, variables=()):
    environment = {**os.environ, **dict(variables), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def write_modules(folder):
    """Write the files that pages tell their reader to save."""
    for name, word in MAKERS.items():
        codes = (code for page in RUN for code in blocks("python", page.read_text("utf-8")))
        (folder / name).write_text(next(code for code in codes if word in code), "utf-8")


def settle(folder, text):
    """Prepare the folder for a block: what it makes itself must not be there before."""
    if "-seed-0" in text:
        shutil.rmtree(folder / "runs")
        shutil.copytree(folder / "s", folder / "runs")
    for words in commands(f"```console\n{text}```"):
        made = made_by(words[1:]) if words[0] in {"tpt", "torchrun"} else None
        if made and (folder / made).exists():
            shutil.rmtree(folder / made)


def run_python(page, code, names):
    code = code.replace('tpt.train("tp-transformer-tiny"', 'tpt.train("toy.yaml"')
    if page.name in REGISTERING:
        process(["-c", code])
    else:
        exec(compile(code, page.name, "exec"), names)  # noqa: S102


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_its_commands_and_snippets_run(page, world, tmp_path, monkeypatch):
    folder = tmp_path / "page"
    shutil.copytree(world, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    mpl.use("agg")
    write_modules(folder)
    names = {}
    for language, text in steps(page):
        if language == "console":
            settle(folder, text)
            for words in commands(f"```console\n{text}```"):
                run_command(words)
        else:
            run_python(page, text, names)


@pytest.mark.parametrize(
    "page", ["README.md", "own-model.md", "tp-attention.md", "binding-problem.md"]
)
def test_snippets_that_need_no_data_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = (other for other in PAGES if other.name == page)
    names = {}
    for language, text in steps(found):
        if language == "python":
            run_python(found, text, names)
    assert names


def test_every_page_with_commands_is_run():
    assert len(RUN) > 20
    assert {page.name for page in PAGES if steps(page)} - {page.name for page in RUN} <= OWN_TESTS
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())
