"""Models of ours on the Hub: folders here, as there is no network."""

import huggingface_hub
import pytest
import torch

import tp_transformer as tpt
from interop_models import model_of, questions
from tp_transformer.errors import FolderError
from tp_transformer.interop.hf import HubTransformer


@pytest.fixture
def model():
    model = model_of("low-rank")  # whose rank is not a field of the configuration
    model.max_answer = 7
    return model


def test_a_folder_is_saved_twice_and_loaded(model, tmp_path):
    model.save(tmp_path / "ours")
    loaded = HubTransformer.from_pretrained(tmp_path / "ours")
    for _ in range(2):
        loaded.save_pretrained(tmp_path / "hub")
    card = (tmp_path / "hub" / "README.md").read_text("utf-8")
    assert "library_name: tp-transformer" in card
    again, plain = HubTransformer.from_pretrained(str(tmp_path / "hub")), tpt.load(tmp_path / "hub")
    assert not again.training
    assert again.max_answer == plain.max_answer == 7
    texts, _ = questions(3)
    assert again.solve(texts) == plain.solve(texts) == model.solve(texts)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_pushed_files_are_those_of_a_model_folder(model, tmp_path, monkeypatch):
    """The requests to the Hub are replaced; everything before them is real."""
    model.save(tmp_path / "ours")
    pushed = {}

    def upload(self, *, repo_id, folder_path, **_):
        pushed[repo_id] = {file.name for file in folder_path.iterdir()}
        return "url"

    def create(self, repo_id, **_):
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    HubTransformer.from_pretrained(tmp_path / "ours").push_to_hub("someone/model")
    files = {"README.md", "config.json", "model.safetensors", "vocabulary.json"}
    assert pushed == {"someone/model": files}


def test_a_repository_is_downloaded(model, tmp_path, monkeypatch):
    model.save(tmp_path / "cached")
    asked = []

    def download(name, **options):
        asked.append((name, options))
        return str(tmp_path / "cached")

    monkeypatch.setattr("tp_transformer.interop.hf.snapshot_download", download)
    loaded = HubTransformer.from_pretrained("someone/model", revision="v1")
    assert loaded.config == model.config
    files = ["model.safetensors", "config.json", "vocabulary.json"]
    assert asked == [("someone/model", {"allow_patterns": files, "revision": "v1"})]


def test_an_lstm_is_refused(tmp_path):
    tpt.build("lstm-saxton", d_hidden=8).save(tmp_path / "lstm")
    with pytest.raises(FolderError, match="architecture lstm"):
        HubTransformer.from_pretrained(tmp_path / "lstm")
