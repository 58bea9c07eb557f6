import pytest

from browser import CHROMIUM, Browser


@pytest.fixture(scope="session")
def browser():
    """Chromium, started once; a test that needs it is skipped where it is not installed."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    started = Browser()
    yield started
    started.close()
