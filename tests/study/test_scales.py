"""The scales: equal budgets, the same samples, sizes in the proportions of Table 1; the bands."""

import json
import re
from dataclasses import replace
from typing import get_args, get_type_hints

import msgspec
import pytest

import update_bands
from documents import ROOT
from tp_transformer import cli
from tp_transformer.data.mathematics.modules import MODULE_NAMES
from tp_transformer.errors import FolderError
from tp_transformer.interpret.analyses import ANALYSES
from tp_transformer.model.checkpoint import from_config
from tp_transformer.model.config import WithoutWeights
from tp_transformer.scoring.published import TABLE_1
from tp_transformer.study import reproduce as reproduction
from tp_transformer.study.reproduce import Band, Reproduction, SplitAccuracy, compare, read_band
from tp_transformer.study.scales import PAPER, SCALES
from tp_transformer.training.config import RunConfig, config_values
from tp_transformer.verbs.study import Reproduce

SMALLER = [scale for scale in SCALES.values() if scale is not PAPER]


def test_the_verb_has_every_scale():
    assert get_args(get_type_hints(Reproduce)["scale"]) == tuple(SCALES)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_a_scale_is_made_of_what_there_is(scale, tmp_path):
    assert {row.name for row in scale.rows} <= TABLE_1.keys()
    assert {name for row in scale.rows for name in row.analyses} <= set(ANALYSES)
    assert scale.analysed_module in (MODULE_NAMES if scale.modules == ("*",) else scale.modules)
    work = Reproduction(scale=scale, out=tmp_path, data=tmp_path / "data")
    for row in scale.rows:
        verb = cli.parse(work.run(row, 1).command())
        assert verb.resolved() == scale.config(row, 1)


@pytest.mark.parametrize("scale", SMALLER, ids=lambda scale: scale.name)
def test_rows_differ_in_the_model_alone(scale):
    """So they train on the same samples for the same number of steps, in the same way."""
    for seed in scale.seeds:
        described = [config_values(scale.config(row, seed)) for row in scale.rows]
        shared = [{**values, "model": None} for values in described]
        assert all(values == shared[0] for values in shared)
        assert shared[0]["training"]["budget"] is None
        assert shared[0]["training"]["steps"] is not None


def test_the_paper_scale_has_the_settings_of_the_papers():
    assert [row.name for row in PAPER.rows] == list(TABLE_1)
    for row in PAPER.rows:
        config = PAPER.config(row, 0)
        assert config.training.steps == TABLE_1[row.name].steps
        preset = config_values(RunConfig.of(row.preset))
        changed = config_values(config)
        assert changed["training"].pop("precision") == "bfloat16"
        del preset["training"]["precision"]
        assert changed == preset


@pytest.mark.parametrize("scale", SMALLER, ids=lambda scale: scale.name)
def test_sizes_are_in_the_proportions_of_table_1(scale):
    def parameters(row):
        with WithoutWeights():
            return from_config(scale.config(row, 0).model).n_parameters

    counts = {row.name: parameters(row) for row in scale.rows}
    plain = counts["transformer"]
    assert counts["tp-transformer"] / plain == pytest.approx(49.1 / 44.2, abs=0.02)
    assert counts["lstm-saxton"] / plain == pytest.approx(18 / 44.2, abs=0.05)
    if "tp-transformer-b" in counts:
        assert counts["tp-transformer-b"] / plain == pytest.approx(43.0 / 44.2, abs=0.03)
        assert counts["tp-transformer-c"] / plain == pytest.approx(30.0 / 44.2, abs=0.03)


BAND = Band(
    date="2026-01-02",
    machine={"processor": "a processor", "cores": 2},
    seconds={"training": 60.0},
    processor_seconds={"training": 110.0},
    rows={"transformer": {"interpolate": (0.5, 0.6)}},
)


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ((0.5, 0.6), "inside"),
        ((0.7, 0.42), "inside"),
        ((0.6, 0.62), "OUTSIDE"),
        ((0.4,), "OUTSIDE"),
    ],
)
def test_the_mean_over_seeds_is_compared_with_the_band(values, where):
    accuracy = {"interpolate": SplitAccuracy(accuracies=values, band=(0.0, 1.0))}
    mean = sum(values) / len(values)
    assert compare("minutes", BAND, {"transformer": accuracy}, generated=True) == [
        f"transformer, interpolate: {mean:.1%}, {where} 50.0% to 60.0%",
        "The band was measured 2026-01-02 on a processor (2 cores).",
    ]
    for band, row, generated, said in (
        (None, "transformer", True, "No band exists for the scale minutes"),
        (BAND, "transformer", False, "No band exists for data that were given"),
        (BAND, "lstm-saxton", True, f"lstm-saxton, interpolate: {mean:.1%}; no band exists"),
    ):
        line, *_ = compare("minutes", band, {row: accuracy}, generated=generated)
        assert line.startswith(said)


def test_the_page_describes_the_scales():
    page = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    for scale in SMALLER:
        config = scale.config(scale.rows[0], 0)
        samples = f"{config.training.steps * config.data.batch_size:,}"
        ending = f"| {len(scale.modules)} | {len(scale.seeds)} | {samples} |"
        assert re.search(rf"^\| `{scale.name}` \| .*{re.escape(ending)}$", page, re.MULTILINE)


def test_the_page_has_the_recorded_bands():
    recorded = json.loads(reproduction.BANDS.read_text("utf-8"))
    assert recorded.keys() <= SCALES.keys()
    for name in SCALES:
        band = read_band(name)
        assert (band is None) == (name not in recorded)
        assert band is None or band.rows.keys() == {row.name for row in SCALES[name].rows}
    page = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    assert update_bands.recorded_table() in page


def test_a_measured_band_is_recorded_as_it_is_read(tmp_path, monkeypatch):
    def finished(name, bounds, **changed):
        row = {"interpolate": {"accuracies": [0.5, 0.52], "band": bounds, "mean": 0.51}}
        written = {"scale": "hour", "generated": True, "rows": {"transformer": row}, **changed}
        (tmp_path / name).mkdir()
        (tmp_path / name / "reproduction.json").write_text(json.dumps(written))
        times = {clock: getattr(BAND, clock) for clock in ("seconds", "processor_seconds")}
        (tmp_path / name / "times.json").write_text(json.dumps(times))
        return tmp_path / name

    def band_of(*folders):
        return update_bands.measured_band(folders, BAND.date, BAND.machine)

    first, wider = finished("first", [0.47, 0.55]), finished("wider", [0.5, 0.6])
    for folders, bounds, cell in (
        ([first], (0.47, 0.55), "47.0% to 55.0%"),
        ([first, wider], (0.47, 0.6), "47.0% to 60.0%"),
    ):
        name, band = band_of(*folders)
        assert band == replace(BAND, rows={"transformer": {"interpolate": bounds}})
        monkeypatch.setattr(reproduction, "BANDS", tmp_path / "bands.json")
        reproduction.BANDS.write_bytes(msgspec.json.encode({name: band}))
        assert (read_band("hour"), read_band("minutes")) == (band, None)
        line = update_bands.bands_table({"hour": band, "paper": None}).splitlines()[2]
        source = "1:00 by the clock, 1:50 of one core, 2026-01-02 on a processor (2 cores)"
        assert line == f"| `hour` | `transformer` | {cell} | - | {source} |"
    for folder, message in (
        (finished("other", [0, 1], scale="minutes"), "several scales"),
        (finished("given", [0, 1], generated=False), "data that were given"),
        (tmp_path / "nothing", "cannot be read"),
    ):
        with pytest.raises(FolderError, match=message):
            band_of(first, folder)
