"""`tpt data`: what each verb prints, and one line with exit code 2 for what a user gets wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tp_transformer as tpt
from corpora import make_store, pairs, rows_of, segments_of, text_of, texts, write_archive
from tp_transformer.cli import main


def run(capsys, *arguments):
    """The exit code, standard output and standard error of `tpt data` with these arguments."""
    code = 0
    try:
        main(["data", *map(str, arguments)])
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def archive(tmp_path):
    return write_archive(tmp_path / "v1.tar.gz", texts())


def test_prepare_show_and_export(capsys, tmp_path, archive, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    store = tmp_path / "store"
    code, out, err = run(capsys, "prepare", archive, "--out", store)
    assert (code, err) == (0, "")
    assert out == f"{store}: train 15, interpolate 4, extrapolate 3\n"
    code, out, err = run(capsys, "show", store)
    assert (code, err) == (0, "")
    assert "interpolate" in out
    assert "What is" in out
    code, out, _ = run(capsys, "show", store, "--json", "--modules", "algebra__*", "numbers__*")
    assert code == 0
    assert json.loads(out)["splits"]["train"]["rows"] == 5
    code, out, err = run(capsys, "export", store, "--format", "jsonl", "--out", tmp_path / "out")
    assert (code, out, err) == (0, f"{tmp_path / 'out'}: 22 rows as jsonl\n", "")


def test_prepare_reports_what_it_left_out(capsys, tmp_path):
    bad = text_of([("What is 1?", "1"), ("Bad?", "1")])
    source = write_archive(tmp_path / "v1.tar.gz", {"train-easy/numbers__gcd.txt": bad})
    arguments = ("prepare", source, "--out", tmp_path / "store")
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err == (
        "tpt: mathematics_dataset-v1.0/train-easy/numbers__gcd.txt, line 3: question with a "
        "character outside the 69: 'B' in 'Bad?'\n"
    )
    code, out, err = run(capsys, *arguments, "--on-error", "skip")
    assert (code, err) == (0, "")
    assert out.splitlines()[1] == (
        "1 rows left out: mathematics_dataset-v1.0/train-easy/numbers__gcd.txt: question with a "
        "character outside the 69, first at line 3"
    )
    assert "1 rows left out" in run(capsys, "show", tmp_path / "store")[1]


def test_names_that_are_not_text_are_shown(tmp_path):
    """A terminal in UTF-8 has no bytes for what a name in Latin-1 decodes to."""
    source = write_archive(tmp_path / "v1.tar.gz", {**texts(), "b\udce9ta.md": b"#"})
    for arguments in (
        ["prepare", source, "--out", tmp_path / "store"],
        ["show", tmp_path / "store"],
    ):
        command = [sys.executable, "-m", "tp_transformer", "data", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"left out: mathematics_dataset-v1.0/b?ta.md" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prepare",), "required"),
        (("prepare", "nowhere", "--out", "store"), "there is no archive or folder nowhere"),
        (("prepare", "nowhere", "--out", "x", "--on-error", "cry"), "on-error"),
        (("show", "nowhere"), "there is no store nowhere"),
        (("export", "nowhere", "--out", "out", "--format", "csv"), "format"),
        (("export", "nowhere", "--out", "out", "--format", "jsonl"), "there is no store nowhere"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("tpt: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_names_the_verbs_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom tp_transformer.cli import main\n"
        "try: main(['data', '--help'])\nexcept SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'pyarrow', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    for verb in ("prepare", "show", "export"):
        assert verb in done.stdout


def test_a_terminal_gets_a_bar(capsys, tmp_path, archive, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, out, err = run(capsys, "prepare", archive, "--out", tmp_path / "store")
    assert (code, out.count("\n")) == (0, 1)
    assert "reading" in err


def test_elsewhere_long_work_gets_a_line_now_and_then(capsys, tmp_path, archive, monkeypatch):
    monkeypatch.setattr("tp_transformer.runtime.progress._SECONDS_BETWEEN_LINES", 0)
    _, _, err = run(capsys, "prepare", archive, "--out", tmp_path / "store")
    assert err.splitlines()[-1].startswith("reading: 100%, ")


def big_archive(path, count):
    """An archive of many rows that takes a while to prepare."""
    rows = text_of(pairs("x", 20_000))
    names = ("easy", "medium", "hard")
    files = {f"train-{name}/numbers__gcd.txt": rows * (count // 60_000) for name in names}
    return write_archive(path, files)


def test_a_killed_prepare_leaves_nothing_and_can_be_started_again(tmp_path):
    source = big_archive(tmp_path / "v1.tar.gz", 1_200_000)
    make_store(tmp_path / "store", segments_of())
    before = rows_of(tpt.data.open(tmp_path / "store"))
    module = [sys.executable, "-m", "tp_transformer"]
    command = [*module, "data", "prepare", str(source), "--overwrite", "--out"]
    process = subprocess.Popen([*command, str(tmp_path / "store")])
    try:
        # Killed when the first record batch is on disk, so in the midst of writing.
        deadline = time.monotonic() + 60
        while not any(f.stat().st_size > 2**20 for f in tmp_path.glob(".store.*/store/*.arrow")):
            assert process.poll() is None, "it was over too soon"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert len(list(tmp_path.glob(".store.*"))) == 1
    assert rows_of(tpt.data.open(tmp_path / "store")) == before
    subprocess.run([*command, str(tmp_path / "store")], check=True, stdout=subprocess.DEVNULL)
    assert len(tpt.data.open(tmp_path / "store")["train"]) == 1_200_000
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["store", "v1.tar.gz"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for its memory")
@pytest.mark.parametrize("kind", ["v1.0", "parquet", "jsonl"])
def test_memory_stays_bounded(tmp_path, kind):
    source = big_archive(tmp_path / "v1.tar.gz", 12_000_000)
    code = (
        "import pathlib, re, sys\nfrom tp_transformer.cli import main\nmain(sys.argv[1:])\n"
        # Of this process alone; `getrusage` would count its parent's before the start.
        "print(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])"
    )
    for arguments in (
        ["prepare", source, "--out", tmp_path / "first"],
        ["export", tmp_path / "first", "--format", kind, "--out", tmp_path / "out"],
        ["prepare", tmp_path / "out", "--out", tmp_path / "second"],
    ):
        command = [sys.executable, "-c", code, "data", *map(str, arguments)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert int(done.stdout.split()[-1]) < 500 * 2**10, arguments
