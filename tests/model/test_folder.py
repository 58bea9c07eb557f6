"""Model folders: what is written is read, and what is damaged or foreign is refused in one line."""

import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import tp_transformer as tpt
from fuzzing import mutate_file, mutate_json, tolerated, trials
from tp_transformer.errors import FolderError
from tp_transformer.model import folder as model_folder
from tp_transformer.model.binding import BINDINGS

NAMES = [*BINDINGS, "lstm"]


def model_of(name="hadamard"):
    if name == "lstm":
        return tpt.build("lstm-saxton", d_hidden=24)
    rank = 3 if name == "low-rank" else None
    return tpt.build("tp-transformer-tiny", binding=name, rank=rank)


@pytest.fixture
def saved(tmp_path):
    model_of().save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_loaded(tmp_path, name):
    model = model_of(name)
    model.save(tmp_path / "deep" / "model")
    loaded = tpt.load(tmp_path / "deep" / "model")
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert loaded.vocabulary == model.vocabulary
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor)
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert loaded.solve(["What is 3 + 4?"]) == model.solve(["What is 3 + 4?"])
    batch = tpt.Batch.from_text(["1 + 1"], ["2"], model.vocabulary)
    assert loaded.loss(batch).total.item() == model.eval().loss(batch).total.item()


def test_the_folder_is_the_designs(saved):
    assert {file.name for file in saved.iterdir()} == {
        "model.safetensors",
        "config.json",
        "vocabulary.json",
    }
    assert json.loads((saved / "vocabulary.json").read_text())[:4] == [
        "<pad>",
        "<sos>",
        "<eos>",
        " ",
    ]
    assert json.loads((saved / "config.json").read_text())["architecture"] == "transformer"


def test_another_order_of_symbols_is_kept(tmp_path):
    vocabulary = tpt.Vocabulary(("<unk>", "<pad>", "<sos>", "<eos>", *"e 10243"))
    model = tpt.build("tp-transformer-tiny", vocabulary=vocabulary, n_vocab=11)
    model.save(tmp_path / "model")
    assert tpt.load(tmp_path / "model").vocabulary.tokens == vocabulary.tokens


def test_half_precision_is_kept(tmp_path):
    model_of().bfloat16().save(tmp_path / "model")
    loaded = tpt.load(tmp_path / "model")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    loaded.solve(["1"])


def test_saving_replaces_an_earlier_model_and_nothing_else(saved):
    another = model_of("none")
    another.save(saved)
    assert tpt.load(saved).config.binding == "none"
    assert os.listdir(saved.parent) == ["model"]
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match=r"already holds something else \(notes\.txt\)"):
        another.save(saved)
    assert (saved / "notes.txt").read_text() == "mine"
    only_a_config = saved.parent / "another"
    only_a_config.mkdir()
    (only_a_config / "config.json").write_text("theirs")
    with pytest.raises(FolderError, match=r"something else \(config\.json\)"):
        another.save(only_a_config)
    file = saved.parent / "file"
    file.write_text("mine")
    with pytest.raises(FolderError, match="already holds something else"):
        another.save(file)


def test_an_interrupted_save_leaves_the_earlier_model(saved, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_folder, "_write_json", full)
    with pytest.raises(FolderError, match=r"cannot write a model to .*No space left"):
        model_of("none").save(saved)
    assert os.listdir(saved.parent) == ["model"]
    assert tpt.load(saved).config.binding == "hadamard"


def test_weights_that_are_not_contiguous_or_shared_do_not_stop_a_save(tmp_path):
    model = model_of()
    weight = model.encoder[0].feed_forward.expand.weight
    weight.data = weight.data.T.contiguous().T
    model.save(tmp_path / "model")
    assert torch.equal(tpt.load(tmp_path / "model").encoder[0].feed_forward.expand.weight, weight)
    model.encoder[1].feed_forward = model.encoder[0].feed_forward
    with pytest.raises(FolderError, match="cannot write a model to") as error:
        model.save(tmp_path / "model")
    assert "\n" not in str(error.value)


def test_a_model_is_saved_through_a_link(saved):
    link = saved.parent / "link"
    link.symlink_to(saved)
    model_of("none").save(link)
    assert link.is_symlink()
    assert tpt.load(saved).config.binding == "none"
    assert sorted(os.listdir(saved.parent)) == ["link", "model"]


def test_files_can_be_read_by_others(saved):
    mask = os.umask(0)
    os.umask(mask)
    assert saved.stat().st_mode & 0o777 == 0o777 & ~mask
    for file in saved.iterdir():
        assert file.stat().st_mode & 0o777 == 0o666 & ~mask


def truncate(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def pickled(folder):
    (folder / "model.safetensors").write_bytes(pickle.dumps({"a": 1}))


def edit_config(**fields):
    def edit(folder):
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**values, **fields}))

    return edit


def drop_config(name):
    def drop(folder):
        values = json.loads((folder / "config.json").read_text())
        del values[name]
        (folder / "config.json").write_text(json.dumps(values))

    return drop


def edit_weights(change):
    def edit(folder):
        weights = load_file(folder / "model.safetensors")
        save_file(change(weights), folder / "model.safetensors")

    return edit


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "model.safetensors is damaged or not a safetensors file"),
        (pickled, "model.safetensors is damaged or not a safetensors file"),
        (write("model.safetensors", ""), "model.safetensors is damaged"),
        (write("config.json", "{"), "config.json is damaged or not JSON"),
        (write("config.json", "[]"), "must hold the fields"),
        (write("config.json", "[" * 100_000), "config.json is damaged or not JSON"),
        (write("vocabulary.json", "{}"), "a vocabulary must be a list of tokens"),
        (write("vocabulary.json", "[1, 2]"), "a vocabulary must be a list of tokens"),
        (write("vocabulary.json", '["<pad>", "<sos>", "<eos>", "a", "a"]'), "token twice"),
        (write("vocabulary.json", '["a"]'), "must list <eos>, <pad>, <sos>"),
        (edit_config(d_modle=3), "no setting 'd_modle' \\(did you mean 'd_model'"),
        (edit_config(d_model="big"), "d_model must be a whole number, not 'big'"),
        (edit_config(n_heads=7), "n_heads must divide"),
        (edit_config(architecture="gru"), "no architecture 'gru'"),
        (edit_config(n_layers=3), "lack tensor 'decoder.2"),
        (edit_config(n_layers=1), "unknown tensor 'decoder.1"),
        (edit_config(d_ff=128), "but the configuration requires"),
        (edit_config(d_model=4_000_000), "d_model 4000000 is more than the weights"),
        (edit_config(n_positions=10**9), "n_positions 1000000000 is more"),
        (edit_config(d_ff=10**30), "d_ff must be from 1 to 2147483647, not a number of 31 digits"),
        (edit_config(n_layers=10_000), "n_layers 10000 is more"),
        (edit_config(n_layers=20_000), "n_layers must be from 1 to 10000, not 20000"),
        (drop_config("n_heads"), "has no 'n_heads'"),
        (drop_config("architecture"), "has no 'architecture'"),
        (edit_config(binding="lowrank"), "did you mean 'low-rank'"),
        (
            edit_weights(lambda w: {k: v.half() if "norm" in k else v for k, v in w.items()}),
            "one type, not float16, float32",
        ),
        (edit_config(n_vocab=10), "needs n_vocab"),
        (
            edit_weights(lambda w: {**w, "extra": torch.zeros(1)}),
            "have an unknown tensor 'extra'",
        ),
        (edit_weights(lambda w: {k: v.long() for k, v in w.items()}), "one type, not int64"),
        (lambda folder: (folder / "vocabulary.json").unlink(), "it has no vocabulary.json"),
        (shutil.rmtree, "there is no model folder"),
    ],
)
def test_damaged_or_foreign_folders_are_refused_in_one_line(saved, damage, message):
    damage(saved)
    with pytest.raises(FolderError, match=message) as error:
        tpt.load(saved)
    assert "\n" not in str(error.value)
    assert str(saved) in str(error.value)


def mutate_header(file, chance):
    """Damage the names, types, shapes and offsets of a safetensors file, which begin it as JSON."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = mutate_json(json.loads(data[8:end]), chance)
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])


@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["low-rank", "lstm"])
def test_folders_with_random_damages_are_loaded_or_refused(tmp_path, name, count):
    fields = {"d_hidden": 8} if name == "lstm" else {"d_model": 16, "d_ff": 16, "n_layers": 1}
    good, bad = tmp_path / "good", tmp_path / "bad"
    preset = "lstm-saxton" if name == "lstm" else "tp-transformer-tiny"
    rank = {"binding": name, "rank": 3} if name == "low-rank" else {}
    tpt.build(preset, **fields, **rank).save(good)
    n_loaded = 0
    for which, chance in trials(count):
        shutil.copytree(good, bad, dirs_exist_ok=True)
        file = bad / chance.choice([model_folder.WEIGHTS, model_folder.CONFIG, "vocabulary.json"])
        is_header = file.suffix == ".safetensors" and chance.random() < 0.7
        (mutate_header if is_header else mutate_file)(file, chance)
        with tolerated(which):
            tpt.load(bad).solve(["What is 3 + 4?"], max_length=2)
            n_loaded += 1
    assert 0 < n_loaded < count / 2  # most damages matter


@pytest.mark.parametrize(("binding", "rank"), [("hadamard", None), ("low-rank", 3)])
def test_folders_of_the_first_version_load(tmp_path, binding, rank):
    """They have a field `rank`, whatever the binding."""
    model = tpt.build("tp-transformer-tiny", binding=binding, rank=rank)
    model.save(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    values = json.loads(file.read_text())
    assert "binding_options" not in values
    assert values.get("rank") == rank
    file.write_text(json.dumps({**values, "rank": rank}))
    loaded = tpt.load(tmp_path / "model")
    assert loaded.config == model.config
    assert loaded.solve(["1"], max_length=3) == model.eval().solve(["1"], max_length=3)
