"""Training from Python: presets by name with overrides, stores as objects."""

import pytest

import tp_transformer as tpt
from corpora import make_store, pairs
from tp_transformer.errors import SettingsError

SMALL = {
    "model": {"d_model": 8, "d_ff": 8, "n_heads": 2, "n_layers": 1},
    "data": {"batch_size": 4, "modules": ("numbers__gcd",)},
    "training": {"steps": 2, "log_every": 1},
}


@pytest.fixture
def store(tmp_path):
    rows = {("train", "numbers__gcd", "easy"): pairs("x", 60)}
    return tpt.data.open(make_store(tmp_path / "math", rows))


def test_settings_of_a_preset_are_overridden():
    preset = tpt.RunConfig.of("tp-transformer-tiny")
    config = tpt.RunConfig.of("tp-transformer-tiny", **SMALL)
    assert config.training.steps == 2
    assert config.model.d_model == 8
    assert config.data.modules == ("numbers__gcd",)
    assert (config.optim, config.validation) == (preset.optim, preset.validation)
    assert config.model.binding == preset.model.binding
    assert preset.model.d_model != 8


def test_a_config_trains_on_a_store_and_resumes(store, tmp_path):
    config = tpt.RunConfig.of("tp-transformer-tiny", **SMALL)
    outcome = tpt.train(config, store, tmp_path / "run", quiet=True)
    assert outcome.step == 2
    assert tpt.load(outcome.run).config.d_model == 8
    assert tpt.train(config, store.path, tmp_path / "run", quiet=True).was_finished


def test_a_file_trains_by_its_path_and_unknown_presets_are_refused(store, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(
        "model: {d_model: 8, d_ff: 8, n_heads: 2, n_layers: 1}\n"
        "data: {batch_size: 4}\ntraining: {steps: 2}\n",
        "utf-8",
    )
    for source in (file, str(file)):
        outcome = tpt.train(source, store, tmp_path / "run", quiet=True)
        assert outcome.step == 2
    with pytest.raises(SettingsError, match="did you mean 'tp-transformer-tiny'"):
        tpt.train("tp-transformer-tinny", store, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"trainings": {"steps": 2}}, "did you mean 'training'"),
        ({"training": {"step": 2}}, "did you mean 'steps'"),
        ({"training": {"steps": -1}}, "training.steps"),
    ],
)
def test_unknown_and_wrong_settings_are_refused(sections, message):
    with pytest.raises(SettingsError, match=message):
        tpt.RunConfig.of("tp-transformer-tiny", **sections)
