"""What the documents say is true: their Python runs, their commands exist, their output is real."""

import re
import shlex
import subprocess
import tomllib

import pytest

import tp_transformer
from commands import check_arguments, check_torchrun
from corpora import make_store, pairs
from documents import PAGES, README, ROOT, blocks, commands
from tp_transformer import cli
from tp_transformer.data.mathematics.produce import MAX_ATTEMPTS
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.model.binding import BINDINGS
from tp_transformer.training.config import run_config
from tp_transformer.training.run import train
from tp_transformer.verbs.data import Generate, Prepare
from tp_transformer.verbs.train import Train

TRAINING, GPUS, MODEL = (
    (ROOT / "docs" / f"{page}.md").read_text("utf-8") for page in ("training", "gpus", "model")
)


def test_it_is_short_and_leads():
    assert len(README.splitlines()) < 150
    assert [len(blocks("python")[0].splitlines()), len(blocks("python"))] == [7, 1]
    assert [words[0] for words in commands(blocks_of_first_commands())] == ["make", "make"]


def blocks_of_first_commands():
    return f"```console\n{blocks('console')[0]}```"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_commands_exist(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
    for words in commands(page.read_text("utf-8")):
        if words[0].startswith("TPT_IMPORT="):
            continue  # tests/test_registries.py runs these
        program, *arguments = words
        if program == "make":
            assert arguments[0] in targets
        elif program == "tpt":
            check_arguments(arguments)
        elif program == "torchrun":
            check_torchrun(arguments)
        elif program == "python":
            assert (ROOT / arguments[0]).is_file()
        elif program == "docker":
            assert (ROOT / "Dockerfile").is_file()
        else:
            assert [program, *arguments[:1]] == ["pip", "install"]
            assert extras_of(arguments[1]) <= set(OPTIONAL)


OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def extras_of(requirement):
    """The extras in `.[a,b]`."""
    return set(re.findall(r"[\w-]+", requirement.partition("[")[2]))


def test_the_extras_that_pages_name_exist():
    named = [
        extras_of(f)
        for page in PAGES
        for f in re.findall(r"'\.\[[\w,]+\]'", page.read_text("utf-8"))
    ]
    assert len(named) > 5
    assert set().union(*named) <= set(OPTIONAL)


def test_the_options_it_explains_exist():
    """Each must fit by itself, or with the others of its row."""
    rows = re.findall(r"^\| .* \| (`.*) \|$", TRAINING, flags=re.MULTILINE)
    found = [re.findall(r"--\w+\.\w+=[^`' ]+", row) for row in rows]
    assert sum(map(len, found)) >= 8
    for options in found:
        complete = [option for option in options if "…" not in option and "{" not in option]
        verb = cli.parse(["train", "--config=tp-transformer", *complete])
        assert verb.config is None or verb.resolved() is not None  # a run that exists has its own


def test_the_slurm_script_is_a_script():
    (script,) = blocks("bash", GPUS)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (command,) = re.findall(r"^srun torchrun (.*?) &$", script, flags=re.DOTALL | re.MULTILINE)
    check_torchrun(shlex.split(command.replace("\\\n", " ")))


def test_the_tree_is_what_a_run_writes(tmp_path):
    model = {"d_model": 8, "d_ff": 8, "n_heads": 2, "n_layers": 1}
    data = {"batch_size": 4}
    config = run_config({"model": model, "data": data, "training": {"steps": 2, "log_every": 1}})
    store = make_store(tmp_path / "math", {("train", "numbers__gcd", "easy"): pairs("x", 60)})
    train(config, store, tmp_path / "run", quiet=True)
    (tree,) = (block for block in blocks("", TRAINING) if block.startswith("runs/"))
    written = {
        path.relative_to(tmp_path / "run").as_posix().replace("step-00000002", "step-00002000")
        for path in (tmp_path / "run").rglob("*")
        if not path.name.startswith(".")
    }
    assert paths_of(tree) == written


def paths_of(tree):
    """The paths that an indented tree names."""
    paths, above = set(), []
    for line in tree.splitlines()[1:]:
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        above = [*above[:depth], line.split()[0].rstrip("/")]
        paths.add("/".join(above))
    return paths


def test_its_table_of_models_is_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    cli.main(["models"])
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    (shown,) = (block for block in blocks("console", MODEL) if block.startswith("$ tpt models"))
    table = shown.splitlines()[1:]
    assert printed[: len(table)] == table
    assert all(line.startswith(("bundled: ", "  card: ")) for line in printed[len(table) :])


def test_it_names_every_binding():
    assert len(BINDINGS) == 11
    assert "eleven bindings" in " ".join(README.split())
    section = MODEL.split("## Bindings")[1].split("## ")[0]
    assert {name for name in BINDINGS if f"`{name}`" in section} == set(BINDINGS)


def test_the_sizes_of_bindings_are_those_of_models():
    """By the formulas in docs/model.md, for the three attention layers of one cell of each kind."""
    (table,) = re.findall(
        r"^\| `binding` \| dimensions.*\n\|-.*\n((?:\|.*\n)+)", MODEL, re.MULTILINE
    )
    sizes = {"d_model": 64, "n_heads": 4, "d_head": 16, "rank": 5, "n_roles": 20}
    plain = tp_transformer.build("transformer-tiny", n_layers=1).n_parameters
    seen = set()
    for row in table.splitlines():
        names, _, formula = (cell.strip() for cell in row.strip("|").split("|"))
        for sign, code in (("²", "**2"), ("·", "*"), ("−", "-")):  # noqa: RUF001
            formula = formula.replace(sign, code)
        expected = plain + 3 * eval(formula, {}, sizes)  # noqa: S307
        for name in set(re.findall(r"`([a-z-]+)`", names)):
            options = {"rank": 5} if name == "low-rank" else {}
            options |= {"per_head": True} if "per_head" in names else {}
            model = tp_transformer.build("transformer-tiny", n_layers=1, binding=name, **options)
            assert model.n_parameters == expected, name
            seen.add(name)
    assert seen == set(BINDINGS)


def test_its_runs_and_stores_are_made_before_they_are_used():
    made = {"math", "transformer-small"}  # the second is bundled
    for program, *arguments in commands(README):
        verb = cli.parse(arguments) if program == "tpt" and arguments[0][0] != "-" else None
        if isinstance(verb, Train):
            made.add(str(verb.run))
        elif isinstance(verb, Generate | Prepare):
            made.add(str(verb.out))
        used = getattr(verb, "request", verb)
        for name in ("model", "data"):
            assert str(getattr(used, name, None)) in {*made, "None"}


def test_the_documents_numbers_are_the_codes():
    text = (ROOT / "docs" / "data.md").read_text("utf-8")
    assert f"up to {MAX_ATTEMPTS} times" in text
    text = MODEL
    assert f"up to {tp_transformer.TransformerConfig().n_positions} of them" in text
    assert f"{len(MATHEMATICS.vocabulary)} tokens" in text


def test_the_version_is_that_of_the_citation_and_of_the_changelog():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    headings = re.findall(r"^## \[(.+)\](?: - (.+))?$", changelog, flags=re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    (date,) = (date for version, date in headings if version == tp_transformer.__version__)
    assert f'version: {tp_transformer.__version__}\ndate-released: "{date}"\n' in citation


def test_docker_is_sent_every_file_that_the_dockerfile_copies():
    lines = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    sent = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.MULTILINE)
    assert {"pyproject.toml", "src"} <= copied <= set(sent)
    assert all((ROOT / name).exists() for name in copied)
