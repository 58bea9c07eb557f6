"""Settings from YAML: presets, files, unknown keys."""

from dataclasses import dataclass
from typing import Literal

import pytest

from tp_transformer import settings
from tp_transformer.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class Stage:
    size: int = 3
    rate: float = 0.5
    name: str | None = None
    kind: Literal["round", "square"] = "round"


def test_presets_are_the_designs():
    assert settings.preset_names() == [
        "lstm-saxton",
        "tp-transformer",
        "tp-transformer-b",
        "tp-transformer-c",
        "tp-transformer-small",
        "tp-transformer-tiny",
        "transformer",
        "transformer-saxton",
        "transformer-small",
        "transformer-tiny",
    ]


def test_values_and_dataclasses_are_inverse():
    stage = settings.to_dataclass(Stage, {"size": 4, "name": "x"}, "stage")
    assert stage == Stage(size=4, name="x")
    assert settings.to_values(stage) == {"size": 4, "rate": 0.5, "name": "x", "kind": "round"}
    assert settings.to_dataclass(Stage, settings.to_values(stage), "stage") == stage
    assert settings.to_dataclass(Stage, {}, "stage") == Stage()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"siez": 4}, "stage has no setting 'siez' (did you mean 'size'?)"),
        ({"zzz": 4}, "stage has no setting 'zzz'; the settings are size, rate, name, kind"),
        ({"size": "four"}, "stage.size must be a whole number, not 'four'"),
        ({"kind": "rnud"}, "stage.kind must be one of round, square (did you mean 'round'?)"),
        ({"name": 3.5}, "stage.name"),
        ({"size": None}, "stage.size"),
        ({"rate": [1]}, "stage.rate"),
    ],
)
def test_wrong_values_are_refused_in_one_line(values, message):
    with pytest.raises(SettingsError) as error:
        settings.to_dataclass(Stage, values, "stage")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: [", "is not YAML"),
        ("- 1", "must hold named settings"),
        ("", "must hold named settings"),
        ("1: 2", "must hold named settings"),
        ("a: !!python/object/apply:os.getcwd []", "is not YAML"),
        (b"\xff\xfe\xff", "cannot read"),
        (None, "cannot read"),
    ],
)
def test_files_that_are_not_settings_are_refused_in_one_line(tmp_path, content, message):
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingsError, match=message) as error:
        settings.read(file)
    assert "mine.yaml" in str(error.value)
    assert "\n" not in str(error.value)
