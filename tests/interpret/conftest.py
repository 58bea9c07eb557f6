import pytest

from legible import illegible, texts
from tp_transformer import figures


@pytest.fixture(autouse=True)
def _looked_at(monkeypatch):
    """Each figure is looked at, and its texts are written in place of three drawings.

    One rendering takes a fraction of their time, and it must be legible.
    """

    def look(drawn, folder, name):
        found = texts(drawn)
        assert not illegible(drawn, found), name
        files = [folder / f"{name}.{kind}" for kind in figures.FORMATS]
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            file.write_text("\n".join(one.words for one in found), "utf-8")
        return files

    monkeypatch.setattr(figures, "save", look)
