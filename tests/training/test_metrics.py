"""What a run records and shows: files that survive, a display that is right."""

import io
import json
import re
import subprocess
import sys

import pytest
from rich.console import Console

from tp_transformer.report import panel as live
from tp_transformer.training.record import Display, Lines, Metrics, as_line, duration, share


def train_record(step, **changes):
    record = {
        "kind": "train",
        "step": step,
        "epoch": step / 100,
        "loss": 2.0 / step,
        "exact_match": 0.25,
        "learning_rate": 0.001,
        "gradient_norm": 0.5,
        "samples_per_second": 1234.0,
        "symbols_per_second": 56789.0,
        "padding": 0.06,
        "waiting": 0.01,
        "skipped": 0,
        "elapsed": 10.0 * step,
        "progress": step / 100,
        "time_left": 10.0 * (100 - step),
    }
    return record | changes


def validation_record(step, exact_match, best):
    return {
        "kind": "validation",
        "step": step,
        "loss": 0.5,
        "exact_match": exact_match,
        "n": 2048,
        "modules": {"numbers__gcd": exact_match},
        "best": best,
        "elapsed": 1.0,
    }


def open_metrics(run, resume_step=0, **options):
    return Metrics(run, resume_step=resume_step, **{"display": Display(), **options})


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_a_record_is_a_line_at_once(tmp_path):
    with open_metrics(tmp_path) as metrics:
        for record in (train_record(20), validation_record(20, 0.5, True)):
            metrics.show(record)
            assert lines_of(tmp_path)[-1] == record


def test_the_log_has_every_record_and_line_with_its_time(tmp_path):
    with open_metrics(tmp_path) as metrics:
        metrics.say("it begins")
        metrics.show(train_record(20))
        metrics.show(validation_record(20, 0.5, True))
    log = (tmp_path / "log.txt").read_text("utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  \S", line) for line in log)
    texts = [line[21:] for line in log]
    assert texts == [str(tmp_path), "it begins", *map(as_line, lines_of(tmp_path))]


def test_resuming_forgets_the_steps_that_will_be_taken_again(tmp_path):
    with open_metrics(tmp_path) as metrics:
        for step in (20, 40, 60):
            metrics.show(train_record(step))
    with open_metrics(tmp_path, resume_step=40) as metrics:
        assert [record["step"] for record in lines_of(tmp_path)] == [20, 40]
        metrics.show(train_record(60, loss=7.0))
    assert lines_of(tmp_path) == [train_record(20), train_record(40), train_record(60, loss=7.0)]
    assert (tmp_path / "log.txt").read_text("utf-8").count("step 60 ") == 2  # it did happen


@pytest.mark.parametrize(
    "torn", [b'{"kind": "tr', b'{"kind": "train"}', b"\xff\xfe", b"\n\n", b"3\n"]
)
def test_resuming_drops_a_line_that_was_cut_short(tmp_path, torn):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(json.dumps(train_record(20)).encode() + b"\n" + torn)
    with open_metrics(tmp_path, resume_step=20) as metrics:
        metrics.show(train_record(40))
    assert lines_of(tmp_path) == [train_record(20), train_record(40)]


def test_what_is_not_finite_is_absent_so_that_any_program_reads_the_file(tmp_path):
    with open_metrics(tmp_path) as metrics:
        metrics.show(train_record(20, loss=float("nan"), gradient_norm=float("inf")))

    def refuse(word):
        raise AssertionError(word)

    record = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert record["loss"] is None
    assert record["gradient_norm"] is None
    assert "loss not finite" in (tmp_path / "log.txt").read_text()


def test_torch_and_tensorboard_are_imported_only_when_asked(tmp_path):
    code = (
        "import sys, pathlib; from tp_transformer.training.record import Lines\n"
        "from tp_transformer.training.record import Metrics\n"
        f"with Metrics(pathlib.Path({str(tmp_path)!r}), resume_step=0, "
        "display=Lines('')): pass\n"
        "assert not {'torch', 'tensorboard'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_lines_come_now_and_then_but_validations_always(tmp_path, monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with open_metrics(tmp_path, display=Lines("a run")) as metrics:
        for step in range(1, 31):
            now = float(step)  # one record a second
            metrics.show(train_record(step))
            if step in (12, 13):
                metrics.show(validation_record(step, 0.5, step == 12))
    shown = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in shown] == [
        "a run",
        "step 1 (1%)",
        "step 11 (11%)",
        "step 12",
        "step 13",
        "step 21 (21%)",
    ]
    assert shown[2].endswith("14:50 left")
    assert shown[3].endswith("exact match 50.0%, the best so far")
    assert shown[4].endswith("exact match 50.0%")
    assert len((tmp_path / "log.txt").read_text("utf-8").splitlines()) == 1 + 30 + 2


def panel(*records, width=80):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    shown = live.View("tp-transformer-tiny in a folder with a rather long name")
    for record in records:
        shown.take([record])
    console.print(shown.render())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


LARGE = {"skipped": 12, "samples_per_second": 123456.0, "time_left": 9.9 * 86400, "progress": 0.5}


def test_the_panel_fits_eighty_columns():
    lines = panel(
        validation_record(888_000, 0.777, True),
        validation_record(990_000, 0.666, False),
        train_record(999_980, **LARGE),
    )
    assert len(lines) == 7
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    for part in (
        "50%",
        "step 999,980",
        "9d 21:36:00 left",
        "training 25.0%",
        "held-out 66.6%",
        "best 77.7% (step 888,000)",
        "123,456 samples/s",
        "padding 6%",
        "waiting for data 1%",
        "learning rate  0.001",
        "12 steps",
    ):
        assert part in text


def test_the_panel_counts_the_time_left_down_between_records(monkeypatch):
    now = 100.0
    monkeypatch.setattr(live.time, "monotonic", lambda: now)
    shown = live.View("")
    shown.take([train_record(50)])
    assert shown._time(train_record(50)) == "8:20 left"
    now = 130.0
    assert shown._time(train_record(50)) == "7:50 left"
    now = 1e6
    assert shown._time(train_record(50)) == "0:00 left"
    assert shown._time(train_record(100)) == "after 16:40"


def test_averages_between_records_are_shown_but_not_recorded(tmp_path):
    class Seen(Display):
        def update(self, record):
            seen.append(record)

    seen = []
    with open_metrics(tmp_path, display=Seen()) as metrics:
        metrics.update(train_record(3, loss=float("nan")))
    assert seen == [train_record(3, loss=None)]
    assert lines_of(tmp_path) == []


def test_the_panel_shows_the_newest_averages_but_draws_records_only():
    shown = live.View("")
    shown.take([train_record(20, loss=2.0), train_record(40, loss=1.0)])
    shown.update(train_record(43, loss=7.0))
    console = Console(width=80, file=io.StringIO())
    console.print(shown.render())
    assert "step 43" in console.file.getvalue()
    assert re.search(r"loss +7\.0000 +█▁ *\n", console.file.getvalue())


def test_a_resumed_panel_knows_the_best_and_the_curve_but_not_the_old_speed():
    console = Console(width=80, file=io.StringIO())
    shown = live.View("")
    shown.take([train_record(20), validation_record(20, 0.4, True), train_record(40, loss=9.0)])
    shown.leave_off()
    console.print(shown.render())
    assert "best 40.0% (step 20)" in console.file.getvalue()
    assert "left" not in console.file.getvalue()
    shown.take([train_record(60)])
    console.print(shown.render())
    assert re.search(r"loss +0\.0333 +▁█▁", console.file.getvalue())


def test_a_terminal_gets_the_panel_with_what_is_said_above(tmp_path):
    """`script` gives the process a terminal; the run is one that is resumed."""
    with open_metrics(tmp_path) as metrics:
        metrics.show(validation_record(10, 0.4, True))
    code = (
        "import pathlib\nfrom tp_transformer.report.panel import display\n"
        "from tp_transformer.training.record import Metrics\n"
        f"with Metrics(pathlib.Path({str(tmp_path)!r}), resume_step=10, "
        f'display=display("a run")) as m:\n'
        f'    m.show({train_record(20)!r})\n    m.say("[saved] here")\n'
    )
    (tmp_path / "code.py").write_text(code)
    command = ["script", "-qec", f"{sys.executable} {tmp_path / 'code.py'}", "/dev/null"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parts = r"\[saved\] here.*a run.*20%.*step 20.*13:20 left.*best 40\.0% \(step 10\)"
    assert re.search(parts, shown, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([3.0, 3.0], "▁▁"),
        ([8.0, 1.0], "█▁"),
        ([0.0, 7.0, 1.0], "▁█▂"),
        ([float("inf"), 1.0, 2.0], "▁█"),
    ],
)
def test_the_curve(values, expected):
    assert live.curve(values) == expected


def test_the_curve_of_a_long_run_is_all_of_it():
    values = [float(value) for value in range(6400)]
    assert live.curve(values, width=8) == "▁▂▃▄▅▆▇█"
    assert len(live.curve(values)) == 32


def test_a_share_is_all_only_if_nothing_is_missing():
    assert [share(value, 1) for value in (0.0, 0.702, 0.9999, 1.0)] == [
        "0.0%",
        "70.2%",
        "99.9%",
        "100.0%",
    ]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (90061, "1d 01:01:01")],
)
def test_durations(seconds, expected):
    assert duration(seconds) == expected
