"""The site: its pages, links and anchors, what its reference covers, and that it builds."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml

import bundled_history
import tp_transformer as tpt
import update_bundled
from documents import PAGES, ROOT, anchors, links
from tp_transformer.model import bundled
from tp_transformer.model.binding import BINDINGS

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
DOCS = ROOT / "docs"


def ids(page):
    return page.relative_to(ROOT).as_posix()


def in_navigation(entries):
    """The pages that the navigation names."""
    for entry in entries:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else in_navigation(target)


def test_the_navigation_has_every_page():
    named = list(in_navigation(SITE["nav"]))
    assert sorted(named) == sorted(
        page.relative_to(DOCS).as_posix() for page in DOCS.glob("**/*.md")
    )


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_pages_are_whole_and_their_links_lead_somewhere(page):
    text = page.read_text("utf-8")
    assert not re.search(r"^(<{7}|={7}|>{7})", text, re.MULTILINE)
    for link in links(text):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if page.is_relative_to(DOCS):  # or the site could not have it
            assert target.is_relative_to(DOCS), link
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), link


def test_anchors_are_found():
    text = "# A title\n```\n# no heading\n```\n## 2026-11-16: what? (section 2.1)\n"
    assert anchors(text) == {"a-title", "2026-11-16-what-section-21"}
    assert links("[a](b.md#c) ![d](e.png)\n```\n[f](g)\n```\n") == ["b.md#c", "e.png"]


def test_files_that_pages_name_exist():
    named = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        folders = "benchmarks|experiments|notebooks|tests|tools"
        named |= set(re.findall(rf"`((?:{folders})/[\w./-]+)`", text))
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def documented(page):
    """The names of which a page of the reference shows the docstrings."""
    text = (DOCS / "reference" / f"{page}.md").read_text("utf-8")
    return re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)


def test_the_reference_has_every_public_name():
    assert set(documented("tp_transformer")) == {
        f"tp_transformer.{name}" for name in tpt.__all__ if name != "__version__"
    }
    assert set(documented("data")) == {f"tp_transformer.data.{name}" for name in tpt.data.__all__}
    options = {analysis.options for analysis in tpt.interpret.ANALYSES.values()}
    for kind in (*options, *BINDINGS.values()):
        if kind.__module__.startswith("tp_transformer."):
            name = f"{kind.__module__}.{kind.__qualname__}"
            assert name in {*documented("interpret"), *documented("model")}


def test_what_pages_say_of_the_bundled_models_is_what_they_are():
    """If this fails after `tpt bundle`, run `python tools/update_bundled.py`."""
    text = update_bundled.summary()
    assert (len(text) > 500) == bool(bundled.names())
    for page in update_bundled.PAGES:
        found = page.read_text("utf-8")
        assert update_bundled.rewritten(found, text) == found, f"{page.name} is stale"
    assert update_bundled.rewritten(found, "other") != found


def has_history():
    """Whether git is there, with all commits of this checkout."""
    if shutil.which("git") is None:
        return False
    command = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip() == "false" and bool(bundled_history.commits())


@pytest.mark.skipif(not has_history(), reason="needs the git history")
def test_the_history_of_the_bundled_models_is_whole():
    """The newest models may be missing: their commit is known only after it was made."""
    page = bundled_history.PAGE.read_text("utf-8")
    mark, commits = "history of the bundled models", bundled_history.commits()
    possible = [bundled_history.history(known) for known in (commits, commits[:-1])]
    assert page in [update_bundled.rewritten(page, tables, mark) for tables in possible]


def test_what_the_readme_says_of_the_bench_is_its_result():
    file = ROOT / "benchmarks" / "results" / "2026-11-17-bench.json"
    means = {
        (row["task"], row["variant"]): {one["split"]: f"{one['mean']:.1%}" for one in row["scores"]}
        for row in json.loads(file.read_text("utf-8"))["rows"]
    }
    said = [
        *(means["scan", variant]["test"] for variant in ("hadamard", "none", "none-matched")),
        *(
            means["mathematics-subset", variant]["interpolate"]
            for variant in ("tp-transformer", "none", "sigmoid")
        ),
    ]
    text = (ROOT / "README.md").read_text("utf-8")
    paragraph = text[text.index("`tpt bench` has trained") :].split("\n\n")[0]
    assert re.findall(r"[\d.]+%", paragraph) == said


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_builds_without_warnings_and_loads_nothing_from_other_hosts(tmp_path):
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("docs", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    pages = sorted((tmp_path / "build" / "site").rglob("*.html"))
    assert len(pages) >= len(list(DOCS.glob("**/*.md")))
    loads = r"<(?:img|script|link|iframe|source|video)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*"
    for page in pages:
        assert re.findall(loads, page.read_text("utf-8")) == [], page
