import os
import tarfile
from pathlib import Path

import pytest

from tp_transformer.data.mathematics import modules
from tp_transformer.data.mathematics.modules import KEYS, MODULES, modules_of
from tp_transformer.data.mathematics.task import MATHEMATICS, match_modules
from tp_transformer.errors import SettingsError

# An archive of the dataset, whole or in part, in a data folder beside the project.
BESIDE = Path(__file__).parents[4].glob("*/data/mathematics_dataset-v1.0*.tar.gz")
SAMPLE = Path(os.environ.get("TPT_SAMPLE") or next(BESIDE, "absent.tar.gz"))


def test_counts_of_the_paper():
    assert len(MODULES) == 56
    assert len(MATHEMATICS.areas) == 8
    assert len(modules.EXTRAPOLATED) == 15
    assert len(KEYS) == len(set(KEYS)) == 4 * 56 + 15


def test_one_name_is_in_both_test_splits():
    shared = set(modules_of("interpolate")) & set(modules_of("extrapolate"))
    assert shared == {"measurement__conversion"}
    splits = {name: tuple(split for split, other in KEYS if other == name) for _, name in KEYS}
    assert splits["measurement__conversion"] == modules.SPLITS
    assert splits[MODULES[0].name] == modules.SPLITS[:-1]


def test_the_table_is_that_of_the_generator():
    pytest.importorskip("mathematics_dataset")
    from tp_transformer.data.mathematics.deepmind import generator

    assert set(generator().samplers) == set(KEYS)


def test_partners_ask_the_same_kind_of_question():
    """Each extrapolation file is drawn by the same function of DeepMind's as its partner."""
    pytest.importorskip("mathematics_dataset")
    from tp_transformer.data.mathematics.deepmind import generator

    samplers = generator().samplers
    for name, partner in modules.EXTRAPOLATED.items():
        function = samplers["interpolate", partner].func.__name__
        longer = samplers["extrapolate", name]
        if hasattr(longer, "func"):  # functools.partial
            assert longer.func.__name__ == function
        else:  # a function that calls it, by name
            assert function in longer.__code__.co_names + longer.__code__.co_freevars, name


@pytest.mark.skipif(not SAMPLE.exists(), reason="needs the sample archive, or TPT_SAMPLE")
def test_the_table_is_that_of_the_archive():
    with tarfile.open(SAMPLE) as archive:
        paths = [Path(name) for name in archive.getnames() if name.endswith(".txt")]
    found = {(path.parent.name, path.stem) for path in paths}
    assert found <= set(KEYS)
    # The published sample lacks two interpolation files.
    assert set(KEYS) - found <= {
        ("interpolate", "algebra__linear_2d_composed"),
        ("interpolate", "calculus__differentiate_composed"),
    }


@pytest.mark.parametrize(
    ("patterns", "split", "names"),
    [
        ("arithmetic__m*", "train-easy", ["mixed", "mul", "mul_div_multiple"]),
        (
            ["probability__*", "calculus__*"],
            "interpolate",
            ["differentiate", "differentiate_composed", "swr_p_level_set", "swr_p_sequence"],
        ),
        # A module stands for its extrapolation files.
        ("arithmetic__mul", "extrapolate", ["mul_big"]),
        ("arithmetic__mul_big", "extrapolate", ["mul_big"]),
        ("arithmetic__mul_big", "interpolate", []),
        ("calculus__*", "extrapolate", []),
    ],
)
def test_wildcards(patterns, split, names):
    modules_ = match_modules(patterns, split)
    assert [module.partition("__")[2] for module in modules_] == names


def test_misspelt_names_are_errors_with_the_nearest():
    with pytest.raises(SettingsError, match="arithmetic__mixed"):
        match_modules("arithmetic__mixde", "train-easy")
    with pytest.raises(SettingsError, match="no module matches 'geometry__"):
        match_modules(["algebra__*", "geometry__*"], "train-easy")
    with pytest.raises(SettingsError, match="did you mean 'interpolate'"):
        modules_of("interpolation")
