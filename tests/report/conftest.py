import pytest

from browser import CHROMIUM, Browser
from reports import write_analysis, write_bench, write_run
from scores import made_up
from tp_transformer.report.page import write_report


@pytest.fixture(scope="session")
def browser():
    """Chromium, started once; a test that needs it is skipped where it is not installed."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    started = Browser()
    yield started
    started.close()


@pytest.fixture(scope="session")
def material(tmp_path_factory):
    """A folder with everything that a report can show."""
    root = tmp_path_factory.mktemp("material")
    made_up("first", n=40).save(root / "results" / "first.json")
    made_up("second", seed=1, better=-0.1, n=40).save(root / "results" / "second.json")
    write_run(root / "runs" / "tiny")
    for name in ("surgery", "roles", "attention-encoder"):
        write_analysis(root / "analysis", name)
    write_bench(root / "bench")
    return root


@pytest.fixture(scope="session")
def report(material):
    """A report on it."""
    return write_report([material], material / "report.html")
