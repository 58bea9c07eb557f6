"""The papers' numbers, checked for slips of the pen."""

from tp_transformer.scoring.published import RECONSTRUCTION_ERROR, TABLE_1
from tp_transformer.settings import preset_names


def test_rows_belong_to_presets_and_lie_in_their_ranges():
    assert set(TABLE_1) <= set(preset_names())
    assert len(TABLE_1) == 6
    for row in TABLE_1.values():
        assert 0 < row.extrapolation < row.interpolation < (row.train or 1) < 1.01
        assert 0 < row.extrapolation_above_95 <= row.interpolation_above_95 <= 56


def test_the_papers_claims_follow_from_its_table():
    """The abstract's and section 4's comparisons, which a mistyped digit would break."""
    best = TABLE_1["tp-transformer"]
    assert best.interpolation == max(row.interpolation for row in TABLE_1.values())
    assert round(best.interpolation - TABLE_1["transformer"].interpolation, 4) == 0.0238
    assert round(best.interpolation - TABLE_1["transformer-saxton"].interpolation, 4) == 0.0592
    assert TABLE_1["tp-transformer-c"].extrapolation == max(
        row.extrapolation for row in TABLE_1.values()
    )


def test_the_errors_of_section_6_1_are_those_printed():
    assert RECONSTRUCTION_ERROR == {"tp-transformer": 0.017, "transformer": 0.009}
    assert set(RECONSTRUCTION_ERROR) <= set(TABLE_1)
