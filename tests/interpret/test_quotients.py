"""The analyses of arithmetic apply to the task of nested quotients."""

import pytest

import tp_transformer as tpt
from tp_transformer import cli
from tp_transformer.data.generated import write_task
from tp_transformer.interpret.analyses import ANALYSES


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_task(tmp_path_factory.mktemp("quotients") / "store", "quotients")


@pytest.mark.parametrize("analysis", ["roles", "attention", "surgery", "binding"])
def test_the_analyses_of_arithmetic_apply(analysis, store, tmp_path, capsys):
    fields = {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1}
    model = tpt.build("quotients", **fields)
    assert model.vocabulary == store.task.vocabulary
    model.save(tmp_path / "model")
    options = [f"--model={tmp_path / 'model'}", f"--out={tmp_path / 'out'}", "--count=12"]
    if ANALYSES[analysis].questions != "nested":  # those have questions of their own
        options += [f"--data={store.path}", "--answered=false"]
    cli.main(["interpret", analysis, *options])
    assert capsys.readouterr().out
    assert any((tmp_path / "out").iterdir())
