"""Settings from YAML: presets, files, unknown keys."""

from dataclasses import dataclass, fields
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tp_transformer import settings
from tp_transformer.errors import SettingsError
from tp_transformer.training.config import RunConfig, run_config, section_kinds


@dataclass(frozen=True, kw_only=True)
class Stage:
    size: int = 3
    rate: float = 0.5
    name: str | None = None
    kind: Literal["round", "square"] = "round"


def test_presets_are_the_designs():
    assert settings.preset_names() == [
        "lookup",
        "lstm-saxton",
        "quotients",
        "recall",
        "scan",
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
    ],
)
def test_wrong_values_are_rejected_in_one_line(values, message):
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


@dataclass(frozen=True, kw_only=True)
class Other:
    size: int = 3
    width: int | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    budget: str | None = None
    names: tuple[str, ...] = ("*",)
    shares: dict[str, float] | None = None
    binding: Literal["none", "some"] = "some"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("stage: {size: 4, rate: 1e-3}\n")
    return path


def run_values(file, *changes):
    changed = dict(change.split("=", 1) for change in changes)
    return settings.run_values(file, changed, {"stage": (Stage, Other), "work": (Work,)})


def test_changes_go_on_top_of_the_file(file):
    assert run_values(file) == {"stage": {"size": 4, "rate": 0.001}}
    assert run_values(file, "stage.size=5", "work.budget=2h") == {
        "stage": {"size": 5, "rate": 0.001},
        "work": {"budget": "2h"},
    }


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("stage.rate=1e-3", 0.001),
        ("stage.rate=1E5", 100_000.0),
        ("stage.rate=-.5e+2", -50.0),
        ("stage.size=1_000", 1000),
        ("stage.name=null", None),
        ("stage.name=none", None),
        ("stage.name=None", None),
        ("stage.name=", None),
        ("stage.name=1e", "1e"),
        ("stage.name=a=b", "a=b"),
        ("work.binding=none", "none"),  # none is one of its values
        ("work.names=*", ["*"]),
        ("work.names=arithmetic__*", ["arithmetic__*"]),
        ("work.names=[a, b]", ["a", "b"]),
        ("work.shares={a: 1, b: 2e-1}", {"a": 1, "b": 0.2}),
        ("stage.architecture=other", "other"),  # where there is a choice
    ],
)
def test_the_values_of_options_are_what_people_mean(file, option, value):
    section, field = option.partition("=")[0].split(".")
    assert run_values(file, option)[section][field] == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("wrok.budget=3", "a run has no setting 'wrok' (did you mean 'work'?)"),
        ("stage.siez=3", "stage has no setting 'siez' (did you mean 'size'?)"),
        ("work.size=3", "work has no setting 'size'"),
        ("work.architecture=x", "work has no setting 'architecture'"),
        ("work=3", "work has no setting ''"),
        ("size=3", "a run has no setting 'size'"),
    ],
)
def test_changes_of_what_does_not_exist_are_refused_in_one_line(file, change, message):
    with pytest.raises(SettingsError) as error:
        run_values(file, change)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("stge: {}", "did you mean 'stage'"),
        ("stage: 3", "'stage' must hold named settings"),
        ("stage: {siez: 3}", "stage has no setting 'siez'"),
    ],
)
def test_wrong_sections_of_a_file_are_refused(tmp_path, content, message):
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(SettingsError, match=message):
        run_values(tmp_path / "mine.yaml")


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.sampled_from(["1e-3", "none", "null", "2h", "yes", "*", "1.0", "1:30", "-", ""])
)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b"]),
        st.dictionaries(
            st.sampled_from(["x", "y", "z"]),
            SCALARS | st.lists(SCALARS) | st.dictionaries(st.text("abc_*"), SCALARS),
        ),
        min_size=1,
    )
)
def test_what_is_dumped_reads_back_equal(values):
    assert settings._parse_yaml(settings.dump(values), "it") == values


def test_tuples_are_dumped_as_lists_in_one_line():
    assert settings.dump({"a": {"betas": (0.9, 1e-9)}}) == "a:\n  betas: [0.9, 1.0e-09]\n"


def test_differences_name_the_fields_and_both_values():
    old = {"a": {"x": 1, "y": (0.9, 0.5), "z": None, "s": "2h"}, "b": {"w": {"q": 1}}}
    same = {"a": {"x": 1.0, "y": [0.9, 0.5], "z": None, "s": "2h"}, "b": {"w": {"q": 1}}}
    assert settings.differences(old, same) == []
    new = {"a": {"x": 2, "y": (0.9, 0.6), "z": 1e-4, "s": None}}
    assert settings.differences(old, new) == [
        "a.x is 1, not 2",
        "a.y is [0.9, 0.5], not [0.9, 0.6]",
        "a.z is absent, not 0.0001",
        "a.s is 2h, not absent",
        'b.w is {"q": 1}, not absent',
    ]


@pytest.mark.parametrize(
    ("changes", "optimizer", "adam_rate"),
    [
        ({"optim.optimizer": "adam"}, "adam", 1.0),
        ({"optim.optimizer": "muon"}, "muon", 0.7),
        ({"training.steps": "3"}, "muon", 0.7),
    ],
)
def test_another_optimizer_does_not_inherit_what_it_lacks(changes, optimizer, adam_rate):
    """The preset has muon and its adam_rate."""
    optim = run_config(settings.run_values("tp-transformer-small", changes, section_kinds())).optim
    assert (optim.optimizer, optim.adam_rate, optim.warmup) == (optimizer, adam_rate, 250)
    optim = RunConfig.of("tp-transformer-small", optim={"optimizer": "adamw"}).optim
    assert (optim.optimizer, optim.adam_rate) == ("adamw", 1.0)


def test_a_setting_of_another_optimizer_is_an_error_if_the_user_gives_it():
    changes = {"optim.optimizer": "adam", "optim.adam_rate": "0.7"}
    with pytest.raises(SettingsError, match="adam_rate needs the optimizer muon"):
        run_config(settings.run_values("tp-transformer-small", changes, section_kinds()))


def test_the_sections_are_the_stages_of_a_run():
    assert tuple(field.name for field in fields(RunConfig)) == settings.SECTIONS
