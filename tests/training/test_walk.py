"""How far it is from `tpt train` to the first step of the optimizer: in functions, and in words."""

import re
import sys
import threading
from pathlib import Path

import pytest
import torch

import tp_transformer
from documents import ROOT
from runs import command
from tp_transformer.cli import main

PACKAGE = str(Path(tp_transformer.__file__).parent)
MOST_FUNCTIONS, MOST_FILES, MOST_HOPS = 378, 50, 28


class FirstStep(BaseException):
    """The optimizer's first step, where the walk ends."""


def test_few_functions_are_called_before_the_first_step(store, tmp_path, monkeypatch):
    """Functions and methods of the package, without lambdas and comprehensions."""

    def arrive(*_):
        raise FirstStep

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name[0] != "<":
            called.add((code.co_filename, code.co_qualname))

    called: set[tuple[str, str]] = set()
    monkeypatch.setattr(torch.optim.Adam, "step", arrive)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with pytest.raises(FirstStep):
            main(command(store, tmp_path / "run"))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert len(called) <= MOST_FUNCTIONS
    assert len({file for file, _ in called}) <= MOST_FILES


def test_the_documented_walk_is_short():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    walk = text.partition("## A training step")[2].partition("calls the optimizer")[0]
    hops = set(re.findall(r"`([\w.]+)\(\)`", walk))
    assert 15 < len(hops) <= MOST_HOPS
