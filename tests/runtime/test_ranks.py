"""Many ranks do what one does; they agree on errors; and a lost one is replaced."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import tp_transformer
from runs import (
    assert_same_run,
    command,
    finish,
    make_store,
    records,
    rows_by_step,
    start,
    start_ranks,
    tensors,
    wait_for,
)
from tp_transformer.errors import SettingsError
from tp_transformer.runtime import ranks
from tp_transformer.runtime.ranks import (
    Ranks,
    choose_device,
    has_bfloat16,
    open_ranks,
)

# 7 samples are not divisible by 2 or 3; dropout would differ, as each rank draws its own.
PLAIN = {"data__batch_size": 7, "model__dropout": 0.0, "training__symbols_per_pass": 60}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("data") / "store")


@pytest.fixture(scope="module")
def alone(store, tmp_path_factory):
    """A run of one rank in float64."""
    folder = tmp_path_factory.mktemp("alone")
    process = start(command(store, folder / "run", **PLAIN), folder / "log", double=True)
    assert finish(process) == [0], (folder / "log").read_text()
    return folder


def assert_close(run, other):
    """Losses, gradient norms, counts and weights agree to float64's precision."""
    for ours, theirs in zip(records(run), records(other), strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            if name == "padding":
                continue  # a rank's share is cut by its own lengths
            if isinstance(value, float):
                assert value == pytest.approx(theirs[name], rel=1e-9), (ours["step"], name)
            else:
                assert value == theirs[name]
    ours, theirs = tensors(run / "last"), tensors(other / "last")
    for name, tensor in theirs.items():
        assert tensor.dtype == torch.float64 or "step." in name[1]
        assert torch.allclose(ours[name], tensor, rtol=1e-7, atol=1e-9), name


def test_two_ranks_are_as_one(store, alone, tmp_path):
    ranks = start_ranks(command(store, tmp_path / "run", **PLAIN), 2, tmp_path / "log", double=True)
    assert finish(*ranks) == [0, 0], (tmp_path / "log-0").read_text()
    assert_close(tmp_path / "run", alone / "run")
    assert rows_by_step(tmp_path, 30) == rows_by_step(alone, 30)
    assert (tmp_path / "log-1").read_text() == ""  # only the first rank speaks


def test_a_run_goes_on_with_fewer_and_with_more_ranks(store, alone, tmp_path):
    begun = tmp_path / "begun" / "run"
    begun.parent.mkdir()
    ranks = start_ranks(command(store, begun, **PLAIN), 2, tmp_path / "begun" / "log", double=True)
    file = begun / "metrics.jsonl"
    wait_for(lambda: file.exists() and any(one["step"] >= 8 for one in records(begun)))
    os.kill(ranks[1].pid, signal.SIGTERM)  # one is told, both stop
    assert finish(*ranks) == [143, 143]
    step = int((begun / "last").resolve().name[-8:])
    assert 8 <= step < 30
    for n_ranks in (1, 3):
        folder = shutil.copytree(begun.parent, tmp_path / f"on {n_ranks}", symlinks=True)
        for file in folder.glob("*-rows.jsonl"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            kept = [json.dumps(line) for line in lines if line["step"] < step]
            file.write_text("\n".join([*kept, ""]))  # without those only made ahead
        arguments = ["train", "--run", str(folder / "run")]
        ranks = start_ranks(arguments, n_ranks, folder / "log again", double=True)
        assert set(finish(*ranks)) == {0}
        assert_close(folder / "run", alone / "run")
        assert rows_by_step(folder, 30) == rows_by_step(alone, 30)


def test_an_error_is_told_once_and_ends_all(store, tmp_path):
    for number, arguments in enumerate(
        (
            command(store, tmp_path / "run", data__batch_size=1),
            command(store, store),
            command(tmp_path / "nothing", tmp_path / "run"),
            [*command(store, tmp_path / "run"), "--trianing.steps=3"],
        )
    ):
        ranks = start_ranks(arguments, 2, tmp_path / f"log{number}")
        assert finish(*ranks) == [2, 2]
        told = [(tmp_path / f"log{number}-{rank}").read_text() for rank in range(2)]
        assert told[0].startswith("tpt: ")
        assert told[0].count("\n") == 1
        assert told[1] == ""


def workers_of(pid):
    """The processes that a process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid and b"tp_transformer" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return sorted(found)


@pytest.mark.parametrize(
    ("n_kills", "n_steps"), [(1, 40), pytest.param(3, 150, marks=pytest.mark.slow)]
)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for workers in /proc")
def test_a_lost_worker_is_replaced_and_training_goes_on(store, tmp_path, n_kills, n_steps):
    arguments = command(store, tmp_path / "run", training__steps=n_steps)
    launcher = ["--standalone", "--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=0.1"]
    module = [sys.executable, "-m", "torch.distributed.run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(tp_transformer.__file__).parents[1])
    with (tmp_path / "log").open("w") as log:
        agent = subprocess.Popen(
            [*module, *launcher, "-m", "--", "tp_transformer", *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            last = tmp_path / "run" / "last"
            for number in range(n_kills):
                step = n_steps * number // (n_kills + 1)
                wait_for(lambda step=step: last.exists() and int(os.readlink(last)[-8:]) > step)
                os.kill(workers_of(agent.pid)[number % 2], signal.SIGKILL)
                time.sleep(0.5)
            assert agent.wait(120) == 0, (tmp_path / "log").read_text()
        finally:
            for worker in workers_of(agent.pid) if agent.poll() is None else ():
                os.kill(worker, signal.SIGKILL)  # they would outlive the agent
            agent.kill()
            agent.wait()
    assert "resuming from step" in (tmp_path / "run" / "log.txt").read_text()
    undisturbed = command(store, tmp_path / "undisturbed", training__steps=n_steps)
    assert finish(*start_ranks(undisturbed, 2, tmp_path / "log")) == [0, 0]
    # The sum of two numbers does not depend on their order: two ranks repeat bit for bit.
    assert_same_run(tmp_path / "run", tmp_path / "undisturbed")


def test_one_rank_needs_no_process_group(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with open_ranks("cpu") as ranks:
        assert not torch.distributed.is_initialized()
        assert ranks == Ranks(torch.device("cpu"), 0, 1)
        assert ranks.is_first
        assert ranks.sum(torch.tensor(3)) == ranks.max(torch.tensor(3)) == 3
        module = torch.nn.Linear(1, 1)
        assert ranks.wrap(module) is module
        assert ranks.first(lambda: "text") == ranks.share("text") == "text"


def test_a_device_that_is_not_there_is_refused():
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type in {"cpu", "cuda", "mps"}
    with pytest.raises(SettingsError, match="there is no device 'tpu'"):
        choose_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match=r"cuda is not available here; available: .*cpu"):
            choose_device("cuda")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu avx2 avx512f avx512_bf16 sse4_2", True),
        ("amx_bf16 amx_tile", True),
        ("fp asimd bf16", True),  # ARM
        ("fpu avx2 avx512f avx512_fp16", False),
        (None, False),
    ],
)
def test_native_bfloat16_is_read_from_the_flags_of_the_processor(
    flags, expected, tmp_path, monkeypatch
):
    file = tmp_path / "cpuinfo"
    if flags is not None:
        file.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbogomips\t: 1\n")
    monkeypatch.setattr(ranks, "CPU_INFO", file)
    assert has_bfloat16(torch.device("cpu")) is expected
    assert has_bfloat16(torch.device("cuda"))
