"""docs/huggingface.md and docs/onnx.md: their commands and their Python run."""

import huggingface_hub
import pytest

import tp_transformer as tpt
from documents import ROOT, blocks, commands
from tp_transformer.cli import main
from tp_transformer.model import bundled

needs_model = pytest.mark.skipif(not bundled.names(), reason="no model is bundled")
ASKED = ["(57/12)/(475/(-50))", "Calculate -5.2 + 77."]


def run(page, smaller):
    """Run the commands of a page, then its Python as one program, with smaller numbers."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    for _, *arguments in commands(text):
        main(arguments)
    code = "\n".join(blocks("python", text))
    for number, small in smaller.items():
        assert number in code
        code = code.replace(number, small)
    names = {}
    exec(compile(code, page, "exec"), names)  # noqa: S102
    return names


@needs_model
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hugging_face(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    monkeypatch.chdir(tmp_path)
    pushed = []
    monkeypatch.setattr(
        huggingface_hub.HfApi,
        "create_repo",
        lambda _, repo_id, **__: huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}"),
    )
    monkeypatch.setattr(
        huggingface_hub.HfApi, "upload_folder", lambda _, *, repo_id, **__: pushed.append(repo_id)
    )
    names = run("huggingface.md", {"max_steps=50": "max_steps=2, use_cpu=True, disable_tqdm=True"})
    assert pushed == ["user/name"]
    trained = names["light"]
    assert trained.solve(ASKED) == names["ask"](ASKED)
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained("sums/model")
    weights = again.model.state_dict()
    assert all(tensor.equal(weights[name]) for name, tensor in trained.state_dict().items())
    assert not trained.embedding.symbols.weight.equal(tpt.load().embedding.symbols.weight)
    assert {file.name for file in (tmp_path / "shared").iterdir()} >= {"README.md", "config.json"}
    assert names["untrained"].config.rank == 32


@pytest.mark.slow
@needs_model
def test_onnx(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    names = run("onnx.md", {})
    assert names["solve"](ASKED) == tpt.load().solve(ASKED)
    assert str(tpt.load().solve(ASKED)) in capsys.readouterr().out
