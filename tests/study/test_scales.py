"""The scales: equal budgets, the same samples, sizes in the proportions of Table 1; the bands."""

import json
import re
from dataclasses import asdict
from typing import get_args, get_type_hints

import numpy as np
import pytest

import runs
from documents import ROOT
from tp_transformer import cli
from tp_transformer.data.mathematics.modules import MODULE_NAMES
from tp_transformer.data.sampling import Feed
from tp_transformer.data.store import open_store
from tp_transformer.errors import FolderError
from tp_transformer.interpret.analyses import ANALYSES
from tp_transformer.model.checkpoint import from_config
from tp_transformer.model.config import WithoutWeights
from tp_transformer.scoring.published import TABLE_1
from tp_transformer.study.reproduce import bands
from tp_transformer.study.reproduce.bands import (
    Band,
    SplitAccuracy,
    bands_table,
    compare,
    measured_band,
)
from tp_transformer.study.reproduce.run import Reproduction
from tp_transformer.study.reproduce.scale import PAPER, SCALES
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
        verb = cli.parse(work.command(row, 1).command())
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


def test_the_samples_of_a_step_are_the_same_for_all_rows(tmp_path):
    split = open_store(runs.make_store(tmp_path / "data"))["train"]
    (scale,) = (one for one in SMALLER if one.name == "minutes")
    rows = []
    for row in scale.rows:
        config = scale.config(row, seed=1)
        feed = Feed(
            split,
            batch_size=config.data.batch_size,
            seed=config.training.seed,
            held_out=config.validation.count,
        )
        rows.append(feed.sampler.rows(7))
    assert all(np.array_equal(own, rows[0]) for own in rows)


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


def accuracy(*values):
    return {"interpolate": SplitAccuracy(accuracies=values, band=(0.0, 1.0))}


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
    lines = compare("minutes", BAND, {"transformer": accuracy(*values)}, generated=True)
    mean = sum(values) / len(values)
    assert lines == [
        f"transformer, interpolate: {mean:.1%}, {where} 50.0% to 60.0%",
        "The band was measured 2026-01-02 on a processor (2 cores).",
    ]


def test_without_a_measurement_there_is_no_band():
    found = {"lstm-saxton": accuracy(0.5)}
    (line,) = compare("hour", None, found, generated=True)
    assert line.startswith("No band exists for the scale hour")
    (line,) = compare("hour", BAND, found, generated=False)
    assert line.startswith("No band exists for data that were given")
    line, _ = compare("hour", BAND, found, generated=True)
    assert line.endswith("no band exists for this row")


def test_the_page_describes_the_scales():
    page = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    for scale in SMALLER:
        config = scale.config(scale.rows[0], 0)
        samples = f"{config.training.steps * config.data.batch_size:,}"
        ending = f"| {len(scale.modules)} | {len(scale.seeds)} | {samples} |"
        assert re.search(rf"^\| `{scale.name}` \| .*{re.escape(ending)}$", page, re.MULTILINE)


def test_the_page_has_the_recorded_bands():
    recorded = json.loads((bands.files(bands.__package__) / bands.BANDS).read_text("utf-8"))
    assert recorded.keys() <= SCALES.keys()
    read = {name: bands.read_band(name) for name in SCALES}
    for name, band in read.items():
        assert (band is None) == (name not in recorded)
        assert band is None or band.rows.keys() == {row.name for row in SCALES[name].rows}
    page = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    assert bands_table(read) in page


def test_a_measured_band_is_recorded_as_it_is_read(tmp_path, monkeypatch):
    row = {"interpolate": {"accuracies": [0.5, 0.52], "band": [0.47, 0.55], "mean": 0.51}}
    written = {"scale": "hour", "generated": True, "rows": {"transformer": row}}
    (tmp_path / "reproduction.json").write_text(json.dumps(written))
    times = {
        "seconds": {"training": 90.0, "scores": 30.0},
        "processor_seconds": {"training": 170.0, "scores": 35.0},
    }
    (tmp_path / "times.json").write_text(json.dumps(times))
    name, band = measured_band([tmp_path], "2026-01-02", BAND.machine)
    (tmp_path / "bands.json").write_text(json.dumps({name: asdict(band)}))
    monkeypatch.setattr(bands, "files", lambda _: tmp_path)
    assert asdict(bands.read_band("hour")) == json.loads(json.dumps(asdict(band)))
    assert bands.read_band("minutes") is None
    line = bands_table({"hour": band, "paper": None}).splitlines()[2]
    source = "2:00 by the clock, 3:25 of one core, 2026-01-02 on a processor (2 cores)"
    assert line == f"| `hour` | `transformer` | 47.0% to 55.0% | - | {source} |"
    wider = tmp_path / "wider"
    wider.mkdir()
    row["interpolate"]["band"] = [0.5, 0.6]
    (wider / "reproduction.json").write_text(json.dumps(written))
    (wider / "times.json").write_text(json.dumps({**times, "seconds": {"training": 1.0}}))
    _, both = measured_band([tmp_path, wider], "2026-01-02", BAND.machine)
    assert both.rows == {"transformer": {"interpolate": (0.47, 0.6)}}
    assert both.seconds == times["seconds"]
    (wider / "reproduction.json").write_text(json.dumps({**written, "scale": "minutes"}))
    with pytest.raises(FolderError, match="several scales: hour, minutes"):
        measured_band([tmp_path, wider], "2026-01-02", {})
    (tmp_path / "reproduction.json").write_text(json.dumps({**written, "generated": False}))
    with pytest.raises(FolderError, match="data that were given"):
        measured_band([tmp_path], "2026-01-02", {})
    with pytest.raises(FolderError, match="no finished reproduction"):
        measured_band([tmp_path / "nothing"], "2026-01-02", {})
