"""Small runs for the tests of training: a store, settings, processes that can be killed.

Processes are forked from one that has imported torch already, which saves each its four seconds.
"""

import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.writer import write_store
from tp_transformer.settings import run_values
from tp_transformer.training.config import run_config, section_kinds

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["tp_transformer.cli", "tp_transformer.training.run", "torch._dynamo"]
)

SETTINGS = {
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.n_heads": 2,
    "model.n_layers": 1,
    "model.dropout": 0.1,
    "data.batch_size": 8,
    "optim.learning_rate": 0.01,
    "optim.warmup": 0,
    "training.steps": 30,
    "training.log_every": 4,
    "training.checkpoint_every": 3,
    "training.symbols_per_pass": 150,
    "validation.every": 10,
    "validation.count": 12,
}
TIMES = {"samples_per_second", "symbols_per_second", "waiting", "elapsed", "time_left"}


def make_store(folder, interpolate=()):
    """A store of units digits; `interpolate` counts test questions of the first modules."""
    chance = random.Random(0)
    segments = [
        ("train", "numbers__place_value", "easy", 40),
        ("train", "numbers__gcd", "easy", 40),
        ("train", "numbers__gcd", "hard", 40),
    ]
    modules = ("numbers__gcd", "numbers__place_value")
    segments += [
        ("interpolate", *one) for one in zip(modules, (None, None), interpolate, strict=False)
    ]
    with write_store(folder, MATHEMATICS, {"kind": "test"}) as writer:
        for split, module, difficulty, count in segments:
            questions, answers = [], []
            for _ in range(count):
                number = chance.randrange(10 ** chance.randrange(1, 9))
                questions.append(f"What is the units digit of {number}?")
                answers.append(str(number % 10))
            writer.append(split, module, difficulty, questions, answers)
    return folder


def settings(**changed):
    """The settings of the tests as YAML; `training__steps=5` changes one."""
    named = {name.replace("__", "."): value for name, value in changed.items()}
    return {name: json.dumps(value) for name, value in {**SETTINGS, **named}.items()}


def options(**changed):
    """The same as options of the command line."""
    return [f"--{name}={value}" for name, value in settings(**changed).items()]


def config(**changed):
    values = run_values("tp-transformer-tiny", settings(**changed), section_kinds())
    return run_config(values)


def command(data, run, **changed):
    preset = ["--config", "tp-transformer-tiny"]
    return ["train", *preset, "--data", str(data), "--run", str(run), *options(**changed)]


def tpt(capsys, *arguments):
    """The exit code, the output and the errors of a command in this process."""
    from tp_transformer.cli import main

    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# What Python reports of the operations by which files appear, change their names and go.
OPERATIONS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "shutil.rmtree"}


def start(arguments, log, *, double=False, kill_at=None, **environment):
    """Start `tpt` with these arguments in a process of its own; what it prints goes to `log`.

    With `double`, the model is in float64 and LOG-rows.jsonl tells which rows were asked for. With
    `kill_at`, a text and a number, the process is killed before that operation on files, counted
    from 0, among those on paths with that text.
    """
    process = PROCESSES.Process(target=_tpt, args=(arguments, log, double, kill_at, environment))
    process.start()
    return process


class Forked:
    """In the place of a `subprocess.Popen` of `python -m tp_transformer …`: the same, forked."""

    def __init__(self, command, *, stderr, **_):
        assert command[:3] == [sys.executable, "-m", "tp_transformer.supervised"]
        descriptor, name = tempfile.mkstemp()
        os.close(descriptor)
        self._errors, self._log = stderr, Path(name)
        self._process = start(command[3:], self._log)
        self.terminate, self.kill = self._process.terminate, self._process.kill
        self.stdin = None

    def poll(self):
        if self._process.exitcode is not None and self._log.exists():
            self._errors.write(self._log.read_bytes())
            self._log.unlink()
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        return self.poll()


def finish(*processes, timeout=120):
    """The exit codes of some processes, once they have ended."""
    for process in processes:
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError("the process did not end")
    return [process.exitcode for process in processes]


def start_ranks(arguments, n_ranks, log, *, double=False):
    """Start `tpt` as torchrun would, one process for each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        start(
            arguments,
            log.with_name(f"{log.name}-{rank}"),
            double=double,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(n_ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        for rank in range(n_ranks)
    ]


def _tpt(arguments, log, double, kill_at, environment):
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    os.fsync = lambda _descriptor: None  # as in tests/conftest.py
    from tp_transformer.cli import main

    if double:
        _patch(log.with_name(f"{log.name}-rows.jsonl"))
    if kill_at is not None:
        _kill_at(*kill_at)
    main(arguments)


def _kill_at(text, number):
    n_operations = 0

    def hook(event, arguments):
        nonlocal n_operations
        if event in OPERATIONS and text in str(arguments):
            if n_operations == number:
                os.kill(os.getpid(), signal.SIGKILL)
            n_operations += 1

    sys.addaudithook(hook)


def _patch(rows_file):
    """Let models be in float64, and write down which rows are asked for."""
    from tp_transformer.data.sampling import Sampler
    from tp_transformer.training import setup

    from_config, rows = setup.from_config, Sampler.rows

    def written(self, step, *share):
        found = rows(self, step, *share)
        with rows_file.open("a") as file:
            print(json.dumps({"step": step, "rows": found.tolist()}), file=file)
        return found

    setup.from_config = lambda *given: from_config(*given).double()
    Sampler.rows = written


def rows_by_step(folder, n_steps):
    """The rows that all ranks together asked for, step by step."""
    found = {step: set() for step in range(n_steps)}
    for file in folder.glob("*-rows.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            if line["step"] in found:
                found[line["step"]] |= set(line["rows"])
    return found


def wait_for(condition, timeout=180):
    """Wait until a condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.002)


def tensors(folder):
    """All tensors of a checkpoint."""
    return {
        (file.name, name): tensor
        for file in sorted(Path(folder).glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def records(run, but=()):
    """The metrics of a run, without what depends on the machine's speed, and some fields more."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    left_out = TIMES.union(but)
    return [{k: v for k, v in json.loads(line).items() if k not in left_out} for line in lines]


def assert_same_run(run, other, but=()):
    """Both have the same weights, averages, metrics, best model and checkpoints, bit for bit.

    Some fields of the metrics may be left out.
    """
    for name in ("last", "best"):
        ours, theirs = tensors(run / name), tensors(other / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), name
    for name in ("checkpoints", "best-models"):
        ours, theirs = (sorted(os.listdir(folder / name)) for folder in (run, other))
        assert ours == theirs
    assert records(run, but) == records(other, but)
    states = [json.loads((one / "last" / "state.json").read_text()) for one in (run, other)]
    for state in states:
        del state["elapsed"], state["hash"], state["files"]["training.safetensors"]
        state["window"] = {
            k: v for k, v in state["window"].items() if k not in {"seconds", "waited"}
        }
    assert states[0] == states[1]


_hooked, _watchers = [], []


def _watch(event, arguments):
    if event in OPERATIONS and _watchers:
        watcher = _watchers.pop()  # what it does itself is not watched
        try:
            watcher(event, arguments)
        finally:
            _watchers.append(watcher)


@contextmanager
def before_each_operation(watcher):
    """Call a function before every operation on files of this process."""
    if not _hooked:
        _hooked.append(sys.addaudithook(_watch))  # for good: Python has no way to remove it
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
