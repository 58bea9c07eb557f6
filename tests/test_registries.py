"""What is added from outside the package, and what is trained end to end."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

import tp_transformer as tpt
from documents import ROOT, blocks
from runs import SETTINGS, config, make_store
from tp_transformer.cli import main
from tp_transformer.data.generated import write_task
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.store import verify
from tp_transformer.data.task import TASKS, Row, Task
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import ResultsError, SettingsError, UserError
from tp_transformer.model.base import ARCHITECTURES
from tp_transformer.model.binding import BINDINGS, Binding
from tp_transformer.model.recurrent import LSTM
from tp_transformer.registry import Registry
from tp_transformer.report.sections import SECTIONS
from tp_transformer.scoring import compare
from tp_transformer.scoring.results import Results
from tp_transformer.training.config import RunConfig
from tp_transformer.training.optim import OPTIMIZERS
from tp_transformer.training.run import train
from tp_transformer.verbs.verb import VERBS


@pytest.fixture
def register(monkeypatch):
    """Register something for the time of a test."""

    def add(registry, name, entry):
        monkeypatch.setattr(registry, "_entries", {**registry._entries})
        return registry.register(name)(entry)

    return add


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("data") / "store")


class Shifted(Binding):
    """The filler times the role plus a constant."""

    def __init__(self, n_heads, d_head, *, shift: float = 1.0):
        super().__init__(n_heads, d_head)
        self.shift = shift

    def forward(self, filler, role):
        return filler * (role + self.shift)


def test_a_binding_trains_solves_and_is_saved(register, store, tmp_path):
    register(BINDINGS, "shifted", Shifted)
    settings = config(model__binding="shifted", model__shift=0.5, training__steps=3)
    train(settings, store, tmp_path / "run", quiet=True)
    model = tpt.load(tmp_path / "run")
    assert model.encoder[0].self_attention.binding.shift == 0.5
    assert len(model.solve(["What is the units digit of 12?"])) == 1
    attention = tpt.TPMultiheadAttention(8, 2, binding="shifted", shift=2.0)
    assert attention.binding.shift == 2.0
    with pytest.raises(SettingsError, match="the shifted binding has no shif"):
        tpt.TPMultiheadAttention(8, 2, binding="shifted", shif=2.0)


class Wide(Binding):
    """A binding with an option that a model has."""

    def __init__(self, n_heads, d_head, *, d_ff: int = 3):
        super().__init__(n_heads, d_head)


def test_a_binding_with_an_option_of_a_model_is_refused(register):
    with pytest.raises(ValueError, match="the wide binding cannot have an option d_ff"):
        register(BINDINGS, "wide", Wide)
    assert "wide" not in BINDINGS
    assert tpt.build("tp-transformer-tiny", d_ff=7).config.d_ff == 7


@pytest.mark.parametrize("shift", ["one", True, [1.0]])
def test_options_of_plain_types_are_checked(register, shift):
    register(BINDINGS, "shifted", Shifted)
    with pytest.raises(SettingsError, match="the shift of the shifted binding must be a number"):
        tpt.build("tp-transformer-tiny", binding="shifted", shift=shift)
    assert tpt.build("tp-transformer-tiny", binding="shifted", shift=1).config.binding_options


BENCH = {
    "constant": {},
    "value": {},
    "sigmoid": {"model__per_head": True},
    "dictionary": {"model__n_roles": 5, "model__one_hot": 0.5, "model__exclusive": 0.1},
}


@pytest.mark.parametrize("binding", BENCH)
def test_a_run_with_any_map_of_roles_resumes_exactly(binding, store, tmp_path):
    fields = {"model__binding": binding, **BENCH[binding]}
    settings = config(**fields, training__steps=6, training__keep=9)
    run = tmp_path / "run"
    train(settings, store, run, quiet=True)
    expected = tpt.load(run / "last").state_dict()
    shutil.rmtree(sorted((run / "checkpoints").iterdir())[-1])
    train(None, None, run, quiet=True)
    found = tpt.load(run / "last")
    assert found.config.binding_options == {
        name.removeprefix("model__"): value for name, value in BENCH[binding].items()
    }
    for key, tensor in found.state_dict().items():
        assert torch.equal(tensor, expected[key]), key


def test_an_architecture_of_the_page_on_extensions_trains(store, tmp_path, monkeypatch, capsys):
    """Its own settings are options of `tpt train`, in its help and in the model folder."""
    monkeypatch.setattr(ARCHITECTURES, "_entries", {**ARCHITECTURES._entries})
    exec(compile(snippet("RepeatedConfig"), "docs/extending.md", "exec"), {"__name__": "mine"})  # noqa: S102
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "[repeated] number of times (default: 2)" in shown
    assert shown.count("size of the feed-forward layer") == 1  # that of the base class
    run, settings = tmp_path / "run", [f"--{n}={v}" for n, v in SETTINGS.items()]
    options = ["--model.architecture=repeated", "--model.n_rounds=3", "--training.steps=2"]
    start = ["train", "--config=tp-transformer-tiny", f"--data={store}", f"--run={run}"]
    main([*start, *settings, *options])
    model = tpt.load(run)
    assert model.config.n_rounds == 3
    batch = tpt.Batch.from_text(["1"], ["2"], model.vocabulary)
    three_rounds = model.loss(batch).total.detach()
    object.__setattr__(model.config, "n_rounds", 1)
    assert model.loss(batch).total.detach() != three_rounds
    main(["train", f"--run={run}", "--training.steps=3"])  # the recorded settings are read again
    monkeypatch.undo()
    message = "there is no architecture 'repeated'.*import the module that registers another"
    with pytest.raises(UserError, match=message):
        tpt.load(run)


def test_an_architecture_needs_settings_of_its_own(monkeypatch):
    """Its settings tell which architecture a model has."""
    monkeypatch.setattr(ARCHITECTURES, "_entries", {**ARCHITECTURES._entries})
    message = "the architecture mine needs a config_type of its own, because lstm has LSTMConfig"
    with pytest.raises(ValueError, match=message):
        ARCHITECTURES.register("mine")(type("Mine", (LSTM,), {}))


def momentum(model: nn.Module, config):
    """Gradient descent with momentum, whose embeddings learn half as fast."""
    slow = [model.embedding.symbols.weight]
    rest = [p for p in model.parameters() if p is not slow[0]]
    groups = [{"params": slow, "rate": 0.5}, {"params": rest}]
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=0.9)


def adafactor(model: nn.Module, config):
    """Its state of a matrix is a row and a column."""
    return torch.optim.Adafactor(model.parameters(), lr=config.learning_rate)


@pytest.mark.parametrize("make", [momentum, adafactor])
def test_an_optimizer_trains_and_resumes_exactly(make, register, store, tmp_path):
    register(OPTIMIZERS, "mine", make)
    options = {"optim__optimizer": "mine", "training__keep": 9}
    train(config(**options, training__steps=9), store, tmp_path / "whole", quiet=True)
    run = tmp_path / "whole"
    expected = tpt.load(run / "last").state_dict()
    for folder in sorted((run / "checkpoints").iterdir())[-2:]:
        shutil.rmtree(folder)
    train(None, None, run, quiet=True)
    for key, tensor in tpt.load(run / "last").state_dict().items():
        assert torch.equal(tensor, expected[key]), key


class Forgetful(torch.optim.SGD):
    """Its state is a number, not a tensor."""

    n_steps = 0

    def step(self, closure=None):
        super().step(closure)
        Forgetful.n_steps += 1
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["kept"] = 3


def test_an_optimizer_whose_state_cannot_be_saved_is_refused_at_once(
    register, store, tmp_path, monkeypatch
):
    message = "keeps 'kept', which is not a tensor"
    monkeypatch.setattr(Forgetful, "n_steps", 0)
    register(OPTIMIZERS, "forgetful", lambda model, _: Forgetful(model.parameters(), lr=0.1))
    options = {"optim__optimizer": "forgetful", "training__steps": 9}
    with pytest.raises(UserError, match=message):
        train(config(**options), store, tmp_path / "run", quiet=True)
    assert Forgetful.n_steps == 1


def reversal(*, count: int = 60, greek: bool = False) -> Task:
    """Words, or Greek letters, to be reversed; longer ones in a test split."""
    letters = "αβγδ" if greek else ["jump", "walk", "look"]
    separator = "" if greek else " "

    def rows():
        chance = random.Random(0)
        for split, longest in (("train", 3), ("same", 3), ("longer", 6)):
            for number in range(count):
                chosen = chance.choices(letters, k=chance.randrange(longest - 2, longest + 1))
                answer = separator.join(reversed(chosen))
                yield Row(split, "evens" if number % 2 else "odds", separator.join(chosen), answer)

    modules = ("odds", "evens")
    return Task(
        name="reversal",
        vocabulary=Vocabulary.of(letters, "characters" if greek else "words"),
        splits={"train": modules, "same": modules, "longer": modules},
        rows=rows,
    )


@pytest.mark.parametrize("greek", [False, True])
def test_a_task_is_made_trained_scored_compared_shown_and_exported(
    register, tmp_path, capsys, greek
):
    register(TASKS, "reversal", reversal)
    data, run, out = tmp_path / "data", tmp_path / "run", tmp_path / "results.json"
    write_task(data, "reversal", greek=greek)
    store = tpt.data.open(data)
    assert store.task == reversal(greek=greek)
    assert [len(split) for split in store.values()] == [60, 60, 60]
    assert store["longer"].max_lengths == (6, 6)
    assert len(verify(data)) == 4
    train(config(training__steps=12, validation__monitor=4), data, run, quiet=True)
    model = tpt.load(run)
    assert model.vocabulary == store.task.vocabulary
    assert model.config.n_vocab == len(store.task.vocabulary) == (7 if greek else 6)
    assert model.max_answer == 6
    model.solve(["αβ" if greek else "jump walk"])
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert {record["split"] for record in records if "split" in record} == {"same"}
    main(["evaluate", "--model", str(run), "--data", str(data), "--out", str(out)])
    results = Results.read(out)
    assert results.task == store.task
    longer = results.splits["longer"].modules
    assert list(longer) == ["odds", "evens"]
    answers = store["longer"].rows(store["longer"].modules["odds"])[1]
    assert longer["odds"].n_tokens == (store.task.vocabulary.encode(answers).lengths - 1).sum()
    main(["compare", str(out), str(out)])
    main(["data", "show", str(data)])
    shown = capsys.readouterr().out
    assert "Longer" in shown
    assert "Table 1" not in shown
    assert "evens" in shown
    main(["data", "export", str(data), "--format", "jsonl", "--out", str(tmp_path / "jsonl")])
    lines = (tmp_path / "jsonl" / "data" / "longer.jsonl").read_text("utf-8")
    assert json.loads(lines.splitlines()[0])["question"] == store["longer"][0].question
    with pytest.raises(SystemExit):
        main(["data", "export", str(data), "--format", "v1.0", "--out", str(tmp_path / "v1")])
    assert "v1.0 is only for the Mathematics Dataset" in capsys.readouterr().err


def test_what_does_not_belong_to_a_task_is_refused(register, tmp_path, store):
    register(TASKS, "reversal", reversal)
    write_task(tmp_path / "data", "reversal")
    words = tpt.data.open(tmp_path / "data")
    with pytest.raises(SettingsError, match=r"no module matches 'od'.*the modules are odds, evens"):
        words["train"].select("od")
    message = "the tokens of .* are words, those of the model characters"
    with pytest.raises(SettingsError, match=message):
        words["train"].tokens([0], tpt.data.open(store).task.vocabulary)
    with pytest.raises(SettingsError, match=r"there is no task 'revers'.*did you mean 'reversal'"):
        write_task(tmp_path / "other", "revers")
    with pytest.raises(SettingsError, match="mathematics is not generated as a whole"):
        write_task(tmp_path / "other", "mathematics")
    assert not (tmp_path / "other").exists()


def test_results_on_different_tasks_are_not_compared():
    made = {"model": {}, "choice": {}, "made": {}, "splits": {}, "near_ties": []}
    tasks = reversal(), MATHEMATICS
    results = [Results(**made, data={"task": task.to_json()}) for task in tasks]
    with pytest.raises(ResultsError, match="on reversal and on mathematics cannot be compared"):
        compare.rows(results)


def read_page(name):
    return (ROOT / "docs" / f"{name}.md").read_text("utf-8")


def snippet(word):
    """The Python in the pages on extensions that has a word."""
    pages = ("extending", "new-analysis", "new-binding")
    text = "".join(map(read_page, pages))
    (found,) = (code for code in blocks("python", text) if word in code)
    return found


def test_the_command_line_imports_extensions(register, store, tmp_path):
    """An installed package has a binding, and a file of one's own has an analysis."""
    register(BINDINGS, "shifted", Shifted)
    tpt.build("tp-transformer-tiny", n_layers=1, binding="shifted").save(tmp_path / "model")
    site = tmp_path / "site"
    (site / "mine-1.0.dist-info").mkdir(parents=True)
    (site / "mine.py").write_text(snippet("ShiftedBinding"), "utf-8")
    (site / "mine-1.0.dist-info" / "METADATA").write_text("Name: mine\nVersion: 1.0\n", "utf-8")
    (site / "mine-1.0.dist-info" / "entry_points.txt").write_text(
        "[tp_transformer.extensions]\nmine = mine\n", "utf-8"
    )
    (tmp_path / "norms.py").write_text(snippet("NormsOptions"), "utf-8")
    path = f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    options = ["--model=model", f"--data={store}", "--split=train", "--count=2", "--out=out"]
    options.append(f"--module={next(iter(tpt.data.open(store)['train'].modules))}")
    done = subprocess.run(
        [sys.executable, "-m", "tp_transformer", "interpret", "norms", *options, "--factor=2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "TPT_IMPORT": "norms.py"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert "The mean norm of the value vectors is" in done.stdout
    assert json.loads((tmp_path / "out" / "norms.json").read_text("utf-8"))["mean"] > 0
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["norms.json"]


def test_a_verb_of_the_page_on_extensions_is_listed_checked_and_run(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(VERBS, "_entries", {**VERBS._entries})
    (tmp_path / "greeting.py").write_text(snippet("Greet"), "utf-8")
    monkeypatch.setenv("TPT_IMPORT", str(tmp_path / "greeting.py"))
    main(["greet", "Ada", "--times", "2"])
    assert capsys.readouterr().out == "Hello, Ada!\nHello, Ada!\n"
    for arguments, text in {
        ("--help",): "Greet somebody.",
        ("greet", "--help"): "how often [default: 1]",
        ("greet", "Ada", "--times=0"): "tpt: --times must be 1 or more, not 0",
        ("greet", "Ada", "--time=0"): "(did you mean --times?)",
        ("greet",): "tpt: NAME is required",
    }.items():
        with pytest.raises(SystemExit):
            main(arguments)
        printed = capsys.readouterr()
        assert text in printed.out + printed.err


def test_a_section_of_another_package_is_in_the_report(monkeypatch, tmp_path):
    """A file with a decorator shows another kind of file; built-in sections come first."""
    code = next(code for code in blocks("python", read_page("report")) if "SECTIONS" in code)
    (tmp_path / "timings.py").write_text(code, "utf-8")
    (tmp_path / "timings.json").write_text('{"timings": {"<solve>": 0.25}}', "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPT_IMPORT", "timings.py")
    monkeypatch.setattr(SECTIONS, "_entries", {**SECTIONS._entries})
    main(["report", "timings.json"])
    page = (tmp_path / "report.html").read_text("utf-8")
    assert re.search("<h2[^>]*>Timings</h2>", page)
    assert "<td>&lt;solve&gt;</td>" in page


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.here", "names 'nothing.here': No module named 'nothing'; a file needs"),
        ("nothing.py", "but there is no such file"),
        ("json.py", "as there is a module 'json' already"),
    ],
)
def test_an_extension_that_cannot_be_imported_is_named(
    name, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").touch()
    monkeypatch.setenv("TPT_IMPORT", name)
    with pytest.raises(SystemExit) as stopped:
        main(["models"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("tpt: TPT_IMPORT")
    assert message in said


def test_a_name_that_is_taken_is_refused():
    registry = Registry("thing")
    registry.register("one")(1)
    assert dict(registry) == {"one": 1}
    with pytest.raises(ValueError, match="there is a thing 'one' already"):
        registry.register("one")(2)
    with pytest.raises(SettingsError, match="did you mean 'one'"):
        registry["on"]
    with pytest.raises(SettingsError, match="there is no thing"):
        registry[{}]


def test_the_lstm_trains_end_to_end(store, tmp_path):
    settings = RunConfig.of(
        "lstm-saxton",
        model={"d_hidden": 16},
        data={"batch_size": 8},
        training={"steps": 6},
        validation={"count": 12, "every": 3},
    )
    outcome = train(settings, store, tmp_path / "run", quiet=True)
    assert outcome.step == 6
    assert isinstance(tpt.load(tmp_path / "run"), LSTM)


def losses(run):
    """The training and validation losses of a run."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines]


def test_the_padded_path_trains_as_the_packed_one(store, tmp_path, monkeypatch):
    """As a GPU in single precision takes it: in parts of padded rows."""
    settings = config(model__dropout=0.0, training__steps=12)
    train(settings, store, tmp_path / "packed", quiet=True)
    monkeypatch.setattr(tpt.Transformer, "reads_packed", False)
    train(settings, store, tmp_path / "padded", quiet=True)
    packed, padded = (losses(tmp_path / name) for name in ("packed", "padded"))
    assert len(packed) > 3
    assert packed == pytest.approx(padded, rel=1e-4)
    assert packed[-1] < 0.8 * packed[0]


@pytest.mark.filterwarnings("default")
def test_compilation_trains_end_to_end(store, tmp_path, monkeypatch):
    """Traced by torch, but not translated to C++, which takes a minute: the slow test does it."""
    torch.compiler.reset()
    compiled = []

    def compile_quickly(module, **options):
        compiled.append(module)
        nn_compile(module, **options, backend="aot_eager")

    nn_compile = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", compile_quickly)
    settings = config(model__dropout=0.0, training__steps=2)
    train(settings, store, tmp_path / "eager", quiet=True)
    assert not compiled
    train(settings, store, tmp_path / "compiled", compile=True, quiet=True)
    assert [type(cell).__name__ for cell in compiled] == ["EncoderCell", "DecoderCell"]
    assert losses(tmp_path / "eager") == pytest.approx(losses(tmp_path / "compiled"), rel=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("binding", ["hadamard", "value", "dictionary"])
def test_a_compiled_model_trains_as_any_other(binding, store, tmp_path):
    torch.compiler.reset()  # or cells of other bindings count, and torch gives up on compiling
    fields = {"model__binding": binding, **BENCH.get(binding, {})}
    settings = config(model__dropout=0.0, training__steps=8, **fields)
    train(settings, store, tmp_path / "eager", quiet=True)
    train(settings, store, tmp_path / "compiled", compile=True, quiet=True)
    eager, compiled = (losses(tmp_path / name) for name in ("eager", "compiled"))
    assert eager == pytest.approx(compiled, rel=1e-4)


def test_training_leaves_the_callers_process_as_it_was(store, tmp_path, monkeypatch):
    """Random state, signal handlers and the allocator are the caller's."""
    monkeypatch.setattr("tp_transformer.runtime.memory.keep_freed_memory", None)
    torch.manual_seed(5)
    random_state = torch.get_rng_state()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(config(training__steps=2), store, tmp_path / "run", quiet=True)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
