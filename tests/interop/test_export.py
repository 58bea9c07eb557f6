"""tpt export: the folders that it writes, and its errors."""

import pytest
import yaml

import tp_transformer as tpt
from interop_models import model_of
from tp_transformer import cli
from tp_transformer.model import bundled

transformers = pytest.importorskip("transformers")


def metadata(folder):
    text = (folder / "README.md").read_text("utf-8")
    assert text.startswith("---\n")
    return yaml.safe_load(text.split("---\n")[1]), text


@pytest.fixture(autouse=True)
def _no_progress_bars():
    transformers.utils.logging.disable_progress_bar()


@pytest.mark.skipif(not bundled.names(), reason="no model is bundled")
def test_a_bundled_model_has_its_scores_and_its_card(tmp_path, capsys):
    cli.main(["export", "--format", "hf", "--out", str(tmp_path / "exported")])
    out = tmp_path / "exported"
    assert capsys.readouterr().out == f"{out}: {', '.join(sorted(f.name for f in out.iterdir()))}\n"
    values, text = metadata(out)
    name = bundled.default()
    results = tpt.Results.read(bundled.FOLDER / name / bundled.RESULTS)
    assert values["library_name"] == "transformers"
    (index,) = values["model-index"]
    assert index["name"] == name
    scores = {
        result["dataset"]["split"]: metric["value"]
        for result in index["results"]
        for metric in result["metrics"]
    }
    assert scores == {
        split: pytest.approx(score.average[0], abs=1e-6) for split, score in results.splits.items()
    }
    assert text.count("## Use with transformers") == 1
    assert "## Limits" in text
    for named in ("training-1.yaml", "results.json"):  # the card says that they are beside it
        assert (out / named).is_file()
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out)
    ours = tpt.load().state_dict()
    assert all(tensor.equal(ours[name]) for name, tensor in model.model.state_dict().items())


def test_another_model_has_a_short_card(tmp_path):
    model_of("hadamard").save(tmp_path / "mine")
    cli.main(["export", "--format=hf", f"--out={tmp_path / 'out'}", f"--model={tmp_path / 'mine'}"])
    values, text = metadata(tmp_path / "out")
    assert "model-index" not in values
    assert "# mine\n\nA TP-Transformer with 2+2 layers, d_model 24" in text
    assert "vocabulary.json" in {file.name for file in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("form", ["hf", "onnx"])
def test_errors_are_one_line_and_nothing_is_written(form, tmp_path, capsys):
    tpt.build("lstm-saxton", d_hidden=8).save(tmp_path / "lstm")
    model_of("none").save(tmp_path / "model")
    for options, message in (
        (["--model=nowhere"], "there is no model folder nowhere"),
        ([f"--model={tmp_path / 'lstm'}"], "only Transformers can be exported"),
        ([f"--model={tmp_path / 'model'}", f"--out={tmp_path / 'model'}"], "has other files"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["export", f"--format={form}", f"--out={tmp_path / 'out'}", *options])
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["lstm", "model"]
