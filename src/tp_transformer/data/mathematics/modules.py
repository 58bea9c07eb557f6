"""The 56 modules of the Mathematics Dataset: areas, splits and extrapolation files.

A file of the dataset is one (split, module). The name alone is not a key: `measurement__conversion`
is a file of both test splits, with different questions. The module that an extrapolation file
continues is listed here, not derived from a prefix.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tp_transformer.errors import SettingsError
from tp_transformer.settings import nearest

DIFFICULTIES = ("easy", "medium", "hard")
TRAIN_SPLITS = tuple(f"train-{difficulty}" for difficulty in DIFFICULTIES)
INTERPOLATE, EXTRAPOLATE = "interpolate", "extrapolate"
SPLITS = (*TRAIN_SPLITS, INTERPOLATE, EXTRAPOLATE)
STORE_SPLITS = ("train", INTERPOLATE, EXTRAPOLATE)
# The split of a store and the difficulty of each split of the dataset.
STORE_KEYS: dict[str, tuple[str, str | None]] = {
    **{f"train-{difficulty}": ("train", difficulty) for difficulty in DIFFICULTIES},
    INTERPOLATE: (INTERPOLATE, None),
    EXTRAPOLATE: (EXTRAPOLATE, None),
}
MAX_QUESTION = 160  # characters of the longest question of the dataset


@dataclass(frozen=True)
class Module:
    """A kind of question, and its extrapolation files, which have longer or larger questions."""

    name: str
    extrapolations: tuple[str, ...] = ()


MODULES = (
    Module("algebra__linear_1d"),
    Module("algebra__linear_1d_composed"),
    Module("algebra__linear_2d"),
    Module("algebra__linear_2d_composed"),
    Module("algebra__polynomial_roots", ("algebra__polynomial_roots_big",)),
    Module("algebra__polynomial_roots_composed"),
    Module("algebra__sequence_next_term"),
    Module("algebra__sequence_nth_term"),
    Module("arithmetic__add_or_sub", ("arithmetic__add_or_sub_big",)),
    Module("arithmetic__add_or_sub_in_base"),
    Module("arithmetic__add_sub_multiple", ("arithmetic__add_sub_multiple_longer",)),
    Module("arithmetic__div", ("arithmetic__div_big",)),
    Module("arithmetic__mixed", ("arithmetic__mixed_longer",)),
    Module("arithmetic__mul", ("arithmetic__mul_big",)),
    Module("arithmetic__mul_div_multiple", ("arithmetic__mul_div_multiple_longer",)),
    Module("arithmetic__nearest_integer_root"),
    Module("arithmetic__simplify_surd"),
    Module("calculus__differentiate"),
    Module("calculus__differentiate_composed"),
    Module("comparison__closest", ("comparison__closest_more",)),
    Module("comparison__closest_composed"),
    Module("comparison__kth_biggest", ("comparison__kth_biggest_more",)),
    Module("comparison__kth_biggest_composed"),
    Module("comparison__pair"),
    Module("comparison__pair_composed"),
    Module("comparison__sort", ("comparison__sort_more",)),
    Module("comparison__sort_composed"),
    Module("measurement__conversion", ("measurement__conversion",)),
    Module("measurement__time"),
    Module("numbers__base_conversion"),
    Module("numbers__div_remainder"),
    Module("numbers__div_remainder_composed"),
    Module("numbers__gcd"),
    Module("numbers__gcd_composed"),
    Module("numbers__is_factor"),
    Module("numbers__is_factor_composed"),
    Module("numbers__is_prime"),
    Module("numbers__is_prime_composed"),
    Module("numbers__lcm"),
    Module("numbers__lcm_composed"),
    Module("numbers__list_prime_factors"),
    Module("numbers__list_prime_factors_composed"),
    Module("numbers__place_value", ("numbers__place_value_big",)),
    Module("numbers__place_value_composed"),
    Module("numbers__round_number", ("numbers__round_number_big",)),
    Module("numbers__round_number_composed"),
    Module("polynomials__add"),
    Module("polynomials__coefficient_named"),
    Module("polynomials__collect"),
    Module("polynomials__compose"),
    Module("polynomials__evaluate"),
    Module("polynomials__evaluate_composed"),
    Module("polynomials__expand"),
    Module("polynomials__simplify_power"),
    Module("probability__swr_p_level_set", ("probability__swr_p_level_set_more_samples",)),
    Module("probability__swr_p_sequence", ("probability__swr_p_sequence_more_samples",)),
)

MODULE_NAMES = tuple(module.name for module in MODULES)
# The module that each extrapolation file continues.
EXTRAPOLATED = {name: module.name for module in MODULES for name in module.extrapolations}
KEYS = tuple(
    (split, name)
    for split in SPLITS
    for name in (EXTRAPOLATED if split == EXTRAPOLATE else MODULE_NAMES)
)


def with_difficulties(splits: Iterable[str], difficulties: Iterable[str]) -> tuple[str, ...]:
    """Return splits of a store as splits of the dataset, which has one for each difficulty."""
    levels = tuple(f"train-{difficulty}" for difficulty in difficulties)
    return tuple(name for split in splits for name in (levels if split == "train" else (split,)))


def modules_of(split: str) -> tuple[str, ...]:
    """Return the names of the files of a split, in the order of the table."""
    if split not in SPLITS:
        raise SettingsError(
            f"there is no split {split!r}{nearest(split, SPLITS)}; the splits are "
            f"{', '.join(SPLITS)}"
        )
    return tuple(name for of_split, name in KEYS if of_split == split)
