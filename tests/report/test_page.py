"""The report in a browser: no errors, tables that sort, figures that can be saved, no intruders."""

import base64

import pytest

from reports import HOSTILE, SVG, hostile_results, write_analysis
from tp_transformer.report.page import write_report


@pytest.fixture
def page(browser, report):
    """The report, opened from its file."""
    browser.view(1280, 900)
    browser.open(report.file.as_uri())
    yield browser
    assert browser.problems() == []


def column(page, number, table="table"):
    return page.run(
        f"[...document.querySelector('{table}').tBodies[0].rows]"
        f".map((row) => row.cells[{number}].textContent)"
    )


def test_it_opens_from_a_file_without_an_error(page, report):
    assert page.run("location.protocol") == "file:"
    titles = page.run("[...document.querySelectorAll('h2')].map((h) => h.textContent)")
    assert titles == [*report.sections, "Files"]
    links = page.run("[...document.querySelectorAll('nav a')].map((a) => a.textContent)")
    assert links == titles
    assert page.run(
        "[...document.querySelectorAll('nav a')]"
        ".every((a) => document.querySelector(a.hash).tagName === 'SECTION')"
    )


def test_a_key_on_a_heading_sorts_the_table(page):
    sort = "document.querySelectorAll('table')[0].tHead.rows[0].cells[{}].querySelector('button')"
    order = "document.querySelector('thead th:nth-child(6)').getAttribute('aria-sort')"
    page.run(sort.format(5) + ".focus()")
    page.press("Enter")
    found = [float(text.split("%")[0]) for text in column(page, 5)]
    assert found == sorted(found, reverse=True)
    assert page.run(order) == "descending"
    page.press("Enter")
    assert [float(text.split("%")[0]) for text in column(page, 5)] == found[::-1]
    assert page.run(order) == "ascending"
    page.run(sort.format(4) + ".click()")  # training, which two rows lack
    assert column(page, 4)[-2:] == ["-", "-"]
    assert page.run(order) is None
    page.run(sort.format(2) + ".click()")  # weights: 49.2M is more than 44.2M and 18M
    assert column(page, 2)[0] == "49.2M"
    assert column(page, 2)[-1] == "18M"
    page.run(sort.format(0) + ".click()")
    names = column(page, 0)
    assert names == sorted(names, key=str.lower)


def test_numbers_in_the_texts_of_an_analysis_sort_as_numbers(page):
    code = """((table) => {
      table.tHead.rows[0].cells[1].querySelector('button').click();
      return [...table.tBodies[0].rows].map((row) => row.cells[1].textContent);
    })([...document.querySelectorAll('table')].find((t) => t.caption.textContent === 'Probes'))"""
    assert page.run(code) == ["80%", "9%", "-"]
    assert page.run(code) == ["9%", "80%", "-"]


def test_negative_numbers_sort_as_numbers(page):
    code = """((table) => {
      table.tHead.rows[0].cells[6].querySelector('button').click();
      return [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
    })([...document.querySelectorAll('table')].at(-1))"""
    assert page.run(code) == ["hadamard", "silu", "tensor", "none"]
    assert page.run(code) == ["tensor", "silu", "hadamard", "none"]


def test_figures_are_saved_as_svg(page):
    files = page.run(
        """(async () => {
          const saved = [];
          const click = HTMLAnchorElement.prototype.click;
          HTMLAnchorElement.prototype.click = function () {
            saved.push([this.download, this.href]);
          };
          const blobs = [];
          const make = URL.createObjectURL;
          URL.createObjectURL = (blob) => (blobs.push(blob), `blob:${blobs.length - 1}`);
          document.querySelectorAll('button.save').forEach((button) => button.click());
          HTMLAnchorElement.prototype.click = click;
          URL.createObjectURL = make;
          const texts = await Promise.all(blobs.map((blob) => blob.text()));
          return saved.map(([name, at]) => [
            name, at.startsWith('blob:') ? texts[at.slice(5)] : at,
          ]);
        })()"""
    )
    names = [name for name, _ in files]
    assert len(names) == len(set(names)) == 4 + 3
    for name, content in files:
        assert name.endswith(".svg")
        if content.startswith("data:"):
            content = base64.b64decode(content.partition(",")[2]).decode()
            assert content == SVG
        assert content.startswith("<svg")
    assert "first (" in dict(files)["accuracy-interpolate.svg"]


def test_the_theme_follows_the_system_and_the_button(page):
    shown = "getComputedStyle(document.body).backgroundColor"
    assert page.run(shown) == "rgb(255, 255, 255)"
    page.run("document.getElementById('theme').click()")
    assert page.run(shown) == "rgb(22, 25, 29)"
    page.view(1280, 900, dark=True)
    page.run("document.getElementById('theme').click()")
    assert page.run(shown) == "rgb(255, 255, 255)"
    page.open(page.run("location.href"))
    assert page.run(shown) == "rgb(22, 25, 29)"
    assert page.run("getComputedStyle(document.querySelector('svg text')).fill") == (
        "rgb(228, 231, 234)"
    )
    assert page.run("getComputedStyle(document.querySelector('.plate')).backgroundColor") == (
        "rgb(255, 255, 255)"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_texts_have_contrast(page, dark):
    page.view(1280, 900, dark=dark)
    for selector in (
        "p.summary",
        "p.note",
        "nav a",
        ".save",
        "th button",
        "summary",
        ".chart text",
    ):
        style = f"getComputedStyle(document.querySelector('{selector}'))"
        colour = page.run(f"{style}.{'fill' if selector == '.chart text' else 'color'}")
        assert page.contrast(colour, "var(--paper)") >= 4.5, selector


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_nothing_is_wider_than_the_window(page, width):
    page.view(width, 900)
    assert page.run("document.documentElement.scrollWidth") <= width


def test_what_is_folded_is_printed(page):
    assert page.run("document.querySelectorAll('details[open]').length") == 0
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("document.querySelectorAll('details:not([open])').length") == 0
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run("document.querySelectorAll('details[open]').length") == 0


def test_headings_are_repeated_on_each_printed_page(page):
    """Chromium repeats the heading of a table only if no box is in it, such as that of a button."""
    page.call("Emulation.setEmulatedMedia", media="print")
    shown = page.run("getComputedStyle(document.querySelector('th button')).display")
    page.call("Emulation.setEmulatedMedia", media="")
    assert shown == "contents"


def test_the_policy_stops_other_scripts_and_connections(browser, report):
    browser.open(report.file.as_uri())
    assert browser.stopped_by_policy() == [
        *("connect-src", "img-src", "script-src-attr", "script-src-elem", "style-src-attr")
    ]


def test_texts_and_figures_of_files_do_nothing(browser, tmp_path):
    hostile_results().save(tmp_path / "results.json")
    folder = tmp_path / "<img src=x onerror=intruder=5>"
    write_analysis(folder, summary=[HOSTILE], model={"name": HOSTILE, "step": None})
    found = write_report([tmp_path], tmp_path / "report.html")
    browser.view(1280, 900)
    browser.open(found.file.as_uri())
    assert browser.problems() == []
    assert browser.run("window.intruder") is None
    assert browser.run("document.querySelectorAll('script').length") == 1
    (image,) = browser.run("[...document.querySelectorAll('img')].map((i) => i.naturalWidth)")
    assert image > 0  # the figure itself is drawn
    assert HOSTILE in browser.run("document.querySelector('main').textContent")
    assert browser.run("document.documentElement.scrollWidth") <= 1280


def test_screen_readers_find_a_name_for_every_control_and_figure(page):
    names = page.names({"button", "link", "img", "image", "region", "table"})
    assert len(names) > 30
    assert all(names)
