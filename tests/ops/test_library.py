"""The C kernels are optional: how they are compiled and found."""

import ctypes
import importlib.util
import os
import shutil
from pathlib import Path

import pytest
import torch

from documents import ROOT
from tp_transformer.ops import library


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path, build, monkeypatch):
    """A copy of the sources of the kernels, on a machine for which they could be compiled."""
    folder = tmp_path / build.FOLDER
    shutil.copytree(ROOT / build.FOLDER, folder, ignore=shutil.ignore_patterns("*.so"))
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(build.sys, "platform", "linux")
    return tmp_path


def compiler(folder: Path, line: str) -> str:
    """A C compiler that runs a line of shell, in which `$out` is the file to write."""
    file = folder / "fake-cc"
    file.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nout=$2\n{line}\n', "utf-8")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize("line", ["exit 1", 'echo half > "$out"; exit 1', None])
def test_a_package_is_built_without_kernels_if_they_cannot_be_compiled(
    build, checkout, monkeypatch, line
):
    monkeypatch.setenv("CC", compiler(checkout, line) if line else str(checkout / "missing"))
    before = sorted((checkout / build.FOLDER).iterdir())
    assert build.compile_kernels(checkout) is None
    assert sorted((checkout / build.FOLDER).iterdir()) == before


def test_a_new_library_replaces_the_old_and_has_the_name_that_is_looked_for(
    build, checkout, monkeypatch
):
    old = checkout / build.FOLDER / "kernels-0000000000000000.so"
    old.touch()
    monkeypatch.setenv("CC", compiler(checkout, 'echo library > "$out"'))
    compiled = build.compile_kernels(checkout)
    assert compiled.name == library.compiled_file().name
    assert compiled.read_text("utf-8") == "library\n"
    assert not old.exists()


def test_kernels_are_not_used_on_other_processors(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    library.load.cache_clear()
    try:
        assert library.load() is None
    finally:
        library.load.cache_clear()


def test_a_library_that_cannot_be_loaded_is_not_used(monkeypatch, tmp_path):
    broken = tmp_path / "kernels.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(library, "compiled_file", lambda: broken)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    library.load.cache_clear()
    try:
        assert library.load() is None
    finally:
        library.load.cache_clear()


def test_a_library_older_than_the_flags_is_compiled_again(build, checkout, monkeypatch):
    monkeypatch.setenv("CC", compiler(checkout, 'echo first > "$out"'))
    compiled = build.compile_kernels(checkout)
    monkeypatch.setenv("CC", compiler(checkout, 'echo second > "$out"'))
    assert build.compile_kernels(checkout).read_text("utf-8") == "first\n"
    os.utime(compiled, (0, 0))
    assert build.compile_kernels(checkout).read_text("utf-8") == "second\n"


def test_two_processes_may_compile_at_the_same_time(build, checkout, monkeypatch):
    """Another process removes the old library first; the new one is there before that."""
    folder = checkout / build.FOLDER
    (folder / "kernels-0000000000000000.so").touch()
    unlink = Path.unlink

    def unlink_twice(file, missing_ok=False):
        assert (folder / library.compiled_file().name).exists()
        unlink(file)
        unlink(file, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_twice)
    monkeypatch.setenv("CC", compiler(checkout, 'echo library > "$out"'))
    compiled = build.compile_kernels(checkout)
    assert list(folder.glob("*.so")) == [compiled]


def test_an_image_is_built_from_files_that_are_not_ignored():
    """`.dockerignore` excludes everything but some names."""
    kept = {line[1:] for line in lines(".dockerignore") if line.startswith("!")}
    copied = {
        name.removeprefix("./")
        for line in lines("Dockerfile")
        if line.startswith("COPY ")
        for name in line.split()[1:-1]
    }
    assert copied <= kept
    assert "hatch_build.py" in copied
    assert "**/*.so" in lines(".dockerignore")  # an image compiles its own


def lines(name: str) -> list[str]:
    return (ROOT / name).read_text("utf-8").splitlines()


def test_an_environment_variable_switches_the_kernels_off(monkeypatch):
    monkeypatch.setenv("TPT_OPS", "0")
    library.load.cache_clear()
    try:
        assert library.load() is None
    finally:
        library.load.cache_clear()


@pytest.mark.skipif(library.load() is None, reason="the kernels are not compiled")
@pytest.mark.parametrize("name", library.STRUCTURES)
def test_structures_have_the_sizes_and_offsets_of_those_in_c(name):
    structure, numbers = library.STRUCTURES[name], (ctypes.c_int64 * 100)()
    count = library.load().struct_layout(name.encode(), numbers)
    offsets = [getattr(structure, field).offset for field, *_ in structure._fields_]
    assert numbers[:count] == [ctypes.sizeof(structure), *offsets]
