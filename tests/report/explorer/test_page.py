"""The page as a user meets it: typing, pointing, keys, addresses, files, sizes."""

import json
import xml.etree.ElementTree as ET

import pytest

import tp_transformer as tpt
from tp_transformer.data.mathematics.modules import MODULES
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.report.explorer.page import Page

NESTED = "What is (4/5)/(2/3)?"


@pytest.fixture
def page(explorer):
    """The page as it is when it is opened."""
    explorer.browser.view(1280, 900)
    explorer.reset()
    yield explorer
    assert explorer.problems() == []


def downloads(page, code):
    """The names and contents of the files that a piece of code saves."""
    return page.run(
        f"""(async () => {{
          const blobs = [];
          const make = URL.createObjectURL, click = HTMLAnchorElement.prototype.click;
          URL.createObjectURL = (blob) => (blobs.push(blob), "blob:none");
          const names = [];
          HTMLAnchorElement.prototype.click = function () {{ names.push(this.download); }};
          {code};
          URL.createObjectURL = make;
          HTMLAnchorElement.prototype.click = click;
          return Promise.all(blobs.map(async (blob, i) => [names[i], await blob.text()]));
        }})()"""
    )


def open_file(page, name, content):
    page.run(
        f"""(() => {{
          const files = new DataTransfer();
          files.items.add(new File([{json.dumps(content)}], {json.dumps(name)}));
          document.getElementById("file").files = files.files;
          document.getElementById("file").dispatchEvent(new Event("change"));
        }})()"""
    )
    page.browser.wait("document.getElementById('file').value === ''")
    page.run("new Promise((resolve) => setTimeout(resolve, 50))")
    page.settle()


def test_a_typed_question_is_answered_token_by_token(page, folders):
    page.run("document.getElementById('question-0').select()")
    page.browser.call("Input.insertText", text="What is 3 + 4?")
    page.press("Enter")
    page.settle()
    (wanted,) = tpt.load(folders[0]).solve(["What is 3 + 4?"])
    assert page.answer() == wanted
    tokens = page.texts(".tokens > li > .token")
    assert "".join(tokens) == wanted + "%"
    options = page.run(
        """[...document.querySelectorAll('.tokens > li')]
          .map((token) => token.querySelectorAll('.option').length)"""
    )
    assert options == [5] * len(tokens)
    shares = page.run(
        "explorer.app.panes[0].result.tokens.map((t) => t.alternatives.map((a) => a.probability))"
    )
    assert all(own == sorted(own, reverse=True) and sum(own) <= 1 + 1e-9 for own in shares)


def test_every_head_has_a_map_and_a_click_enlarges_it(page):
    assert len(page.texts(".map")) == 3 * 2 * 4
    page.run("document.querySelectorAll('.map')[5].click()")
    assert page.run("document.getElementById('head-dialog').open")
    assert page.text("#head-body h3") == "Encoder layer 1, head 1"
    page.press("ArrowRight")
    assert page.text("#head-body h3") == "Encoder layer 1, head 2"
    page.press("Escape")
    page.browser.wait("!document.getElementById('head-dialog').open")


def test_pointing_at_a_character_shows_its_row_in_every_head(page):
    source = "[...document.querySelectorAll('.row[data-side=source] button')]"
    page.run(f"{source}[4].dispatchEvent(new Event('pointerenter'))")
    assert page.text(".rows h3").startswith("Row of")
    assert page.text(".rows h3").endswith("(4) in every head")
    canvas = "explorer.app.panes[0].maps.querySelector('.weights')"
    pale = f"{canvas}.getContext('2d').getImageData(0, 0, 1, 9).data"
    hovered = page.run(f"Array.from({pale})")
    page.run(
        "document.querySelector('.row[data-side=source]').dispatchEvent(new Event('pointerleave'))"
    )
    full = page.run(f"Array.from({pale})")
    assert hovered[16:20] == full[16:20]  # the row itself
    assert hovered[0:3] != full[0:3]
    weights = page.run(
        f"{source}.map((button) => parseFloat(button.style.getPropertyValue('--weight')) / 100)"
    )
    assert sum(weight**2 for weight in weights) == pytest.approx(1, abs=0.02)


def test_pointing_at_a_character_shows_its_vector(page):
    selected = page.text("#vector h3")
    shown = page.texts("#vector rect title")
    page.run(
        "document.querySelectorAll('.row[data-side=source] button')[9]"
        ".dispatchEvent(new Event('pointerenter'))"
    )
    assert page.text("#vector h3") == selected.replace("4", "(") != selected
    vector = page.run(
        """Array.from(vectorAt(explorer.app.panes[0].result.points['encoder.1.self_attention'],
          explorer.app.panes[0].config, 0, 9))"""
    )
    bars = page.texts("#vector rect title")
    assert bars[-9:] == [f"element {i}: {value:.4f}" for i, value in enumerate(vector)]
    page.run(
        "document.querySelector('.row[data-side=source]').dispatchEvent(new Event('pointerleave'))"
    )
    assert page.text("#vector h3") == selected
    assert page.texts("#vector rect title") == shown


def test_models_of_other_sizes_stand_side_by_side(browser, folders, tmp_path, explorer):
    """Whatever is selected in the larger model, the smaller one is shown without an error."""
    small = tpt.build("transformer-tiny", d_model=8, d_ff=8, n_heads=2, n_layers=1).eval()
    models = [tpt.load(folders[0]), small]
    Page(models=models, folders=["large", "small"]).write(tmp_path / "page.html")
    page = type(explorer)(browser, (tmp_path / "page.html").as_uri())
    page.open()
    page.click("#compare")
    page.run("explorer.app.look({point: 'decoder.1.cross_attention', head: 3})")
    page.run("document.querySelectorAll('.pane')[1].querySelector('.character').click()")
    assert page.text("#vector h3").startswith("The value of")
    files = downloads(
        page, "document.querySelectorAll('.pane .saves button').forEach((b) => b.click())"
    )
    assert len(files) == 16
    assert page.problems() == []


def test_named_clusters_have_a_legend(browser, folders, tmp_path, explorer):
    model = tpt.load(folders[0])
    names = ["numerator", None]
    centroids = [[0.0] * 9, [9.0] * 9]
    heads = [{"head": 2, "centroids": centroids, "names": names}]
    roles = {"layer": 1, "head": 2, "heads": heads}
    Page(models=[model], folders=["it"], roles=roles).write(tmp_path / "page.html")
    page = type(explorer)(browser, (tmp_path / "page.html").as_uri())
    page.open()
    assert page.run("explorer.app.state.view.head") == 2
    assert page.texts(".clusters li") == [" 0: numerator"]
    assert page.run("document.querySelector('.character').title") == (
        "position 0, cluster 0 (numerator)"
    )
    page.run("explorer.app.look({ head: 1 })")
    assert page.texts(".clusters li") == []


def test_a_page_of_another_task_offers_its_own_questions(browser, shape, tmp_path, explorer):
    vocabulary = Vocabulary.of(["jump twice and run"], "words")
    model = tpt.build("tp-transformer-tiny", vocabulary=vocabulary, **shape).eval()
    examples = [
        {"module": "scan", "question": text, "answer": "run"} for text in ("run twice", "jump")
    ]
    Page(models=[model], folders=["it"], examples=examples).write(tmp_path / "page.html")
    page = type(explorer)(browser, (tmp_path / "page.html").as_uri())
    page.open()
    assert page.run("explorer.app.state.panes[0].question") == "run twice"
    assert page.texts("#examples option") == ["Choose…", "run twice", "jump"]
    assert page.run("document.getElementById('nested').hidden")
    assert page.problems() == []


def test_one_click_compares_two_fractions_of_fractions(page, folders):
    page.run("explorer.app.ask(0, 'Calculate (3/7)/(5/9).')")
    page.settle()
    page.click("#nested")
    assert page.run("explorer.app.state.panes.map((p) => p.question)") == [
        "Calculate (3/7)/(5/9).",
        "Calculate (3/9)/(5/7).",
    ]
    answers = tpt.load(folders[0]).solve(["Calculate (3/7)/(5/9).", "Calculate (3/9)/(5/7)."])
    assert [page.answer(0), page.answer(1)] == answers
    near = page.run(
        """explorer.app.inspector
          .nearest(explorer.app.panes[0], 'encoder.0.self_attention', 0, 3)
          .map(({ pane }) => pane)"""
    )
    assert 1 in near


def test_two_models_stand_side_by_side(page, folders):
    page.click("#compare")
    assert page.run("explorer.app.panes.map((p) => p.model)") == [0, 1]
    assert page.answer(1) == tpt.load(folders[1]).solve([NESTED])[0]


def test_the_address_reopens_what_is_shown(page):
    page.click("#nested")
    page.run(
        """explorer.app.look({
          point: 'encoder.0.self_attention', head: 3, pane: 1, position: 5, clusters: 4 })"""
    )
    page.run(
        "[...document.querySelectorAll('#operate .operation button')].forEach((b) => b.click())"
    )
    page.settle()
    page.run("explorer.app.look({difference: true})")
    before = page.run(
        "[location.hash, JSON.stringify(explorer.app.state), explorer.app.panes[1].result.answer]"
    )
    page.open(before[0])
    after = page.run(
        "[location.hash, JSON.stringify(explorer.app.state), explorer.app.panes[1].result.answer]"
    )
    assert after == before
    assert len(json.loads(after[1])["panes"][1]["operations"]) == 4


def test_an_address_that_makes_no_sense_is_refused_in_words(page):
    page.open("#nonsense")
    assert "it has no panes" in page.text("#status")
    assert page.answer() is not None
    for address, said in (
        ("#q=1&op=encoder.9.self_attention/0/0/zero", "there is no attention encoder.9"),
        ("#q=1&op=encoder.0.self_attention/0/0/explode", "there is no operation explode"),
        ("#q=1&op=encoder.0.self_attention/0/0/set/1,2", "must have 9 numbers"),
        ("#q=1&m=7", "there is no model 7"),
    ):
        page.run(f"location.hash = {address!r}")
        page.browser.wait(f"document.getElementById('status').textContent.includes({said!r})")
        assert page.answer() is not None


def test_a_saved_state_reopens_and_others_are_refused(page):
    page.run(
        """explorer.app.addOperation(0, {
          point: 'encoder.0.self_attention', head: 1, position: 2, kind: 'zero' })"""
    )
    page.settle()
    ((name, content),) = downloads(page, "document.getElementById('save').click()")
    assert name == "explorer-state.json"
    state = page.run("JSON.stringify(explorer.app.state)")
    page.open()
    open_file(page, name, content)
    assert page.run("JSON.stringify(explorer.app.state)") == state
    for other, said in (
        ("{", "it is not JSON"),
        ("[]", "it was not saved by this page"),
        (
            content.replace(json.loads(content)["models"][0], "0"),
            "another model",
        ),
        (json.dumps({**json.loads(content), "panes": [{"model": 0, "question": 3}]}), "not a text"),
    ):
        open_file(page, "state.json", other)
        assert said in page.text("#status")
    assert page.run("JSON.stringify(explorer.app.state)") == state


def test_panels_are_saved_with_their_labels(page):
    files = downloads(
        page,
        """document.querySelectorAll('.pane .saves button, #vector .saves button')
          .forEach((button) => button.click())""",
    )
    assert [name.rsplit(".")[-1] for name, _ in files] == ["svg", "json"] * 5
    for name, content in files:
        if name.endswith(".json"):
            json.loads(content)
        else:
            root = ET.fromstring(content)  # noqa: S314, our own
            words = "".join(root.itertext())
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert {
                "answer": NESTED,
                "characters": "head 0",
                "heads": "Encoder layer 1",
                "row": "1.3",
                "vector": "element 8",
            }[name.split("-")[0].removesuffix(".svg")] in words
    values = dict(files)
    attention = json.loads(values["heads-1.json"])["attention"]["encoder.0.self_attention"]
    assert len(attention["weights"]) == 4 * 22 * 22
    assert sum(attention["weights"][:22]) == pytest.approx(1, abs=1e-5)


def test_there_is_an_example_of_every_module(page):
    labels = page.texts("#examples option")
    names = [label.split(":")[0] for label in labels[1:]]
    assert names == [m.name.split("__")[1].replace("_", " ") for m in MODULES for _ in range(2)]
    page.run(
        """((select) => {
          select.selectedIndex = 5;
          select.dispatchEvent(new Event('change'));
        })(document.getElementById('examples'))"""
    )
    page.settle()
    assert labels[5].endswith(page.run("explorer.app.state.panes[0].question"))
    assert page.run("Boolean(document.querySelector('.right, .wrong'))")


def test_predictions_of_an_evaluation_are_offered_wrong_ones_first(page):
    lines = [
        {"module": "<i>m</i>", "question": "1 + 1", "answer": "2", "predicted": "2", "right": True},
        {"module": "m", "question": "1 + 2", "answer": "3", "predicted": "4", "right": False},
    ]
    open_file(page, "predictions.jsonl", "\n".join(map(json.dumps, lines)))
    assert page.texts("#evaluated option")[1:] == ["m: 1 + 2", "<i>m</i>: 1 + 1"]
    assert page.run("document.querySelector('#evaluated i')") is None
    open_file(page, "predictions.jsonl", "not JSON")
    assert "cannot be opened" in page.text("#status")


def test_the_code_is_copied_or_else_selected(page):
    page.run(
        """Object.defineProperty(navigator, 'clipboard', {
          configurable: true, value: { writeText: async (text) => (window.copied = text) } })"""
    )
    page.click("#copy")
    assert page.run("window.copied") == page.text("#python")
    assert page.text("#status") == "Copied."
    page.run("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.click("#copy")
    assert page.run("getSelection().toString()") == page.text("#python").rstrip()
    assert "selected" in page.text("#status")


def test_keys_do_what_the_help_says(page):
    page.run("document.querySelector('.row[data-side=source] button').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    page.press("Enter")
    assert page.run("explorer.app.state.view.position") == 2
    assert page.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.press("]")
    assert page.run("explorer.app.state.view.head") == 1
    page.press("d")
    assert page.run("explorer.app.state.view.difference")
    page.press("?")
    assert page.run("document.getElementById('help-dialog').open")
    keys = page.run("Object.keys(KEYS)")
    told = " ".join(page.texts("#help-dialog dt")) + " ?"
    assert all(key in told.split() for key in keys)


def test_the_focus_stays_where_a_key_was_pressed(page):
    focused = "document.activeElement"
    page.run("document.querySelector('#operate .operation button').focus()")
    page.press("Enter")
    page.settle()
    assert page.run("explorer.app.state.panes[0].operations.length") == 1
    assert page.run(f"{focused}.textContent") == "Zero"
    page.run("document.querySelectorAll('#where select')[1].focus()")
    page.press("ArrowDown")
    page.browser.wait("explorer.app.state.view.head === 1")
    assert page.run(f"{focused}.parentElement.textContent").startswith("Head")
    page.run("document.querySelectorAll('.map')[2].focus()")
    page.press("Enter")
    page.press("ArrowRight")
    page.press("Escape")
    page.browser.wait("!document.getElementById('head-dialog').open")
    # The browser announces that a dialog was closed a moment later.
    page.browser.wait(f"{focused}.title === 'Encoder layer 0, head 3'")


def test_screen_readers_find_a_name_for_every_control(page):
    controls = {"button", "combobox", "textbox", "spinbutton", "listbox", "img", "toolbar"}
    names = page.browser.names(controls)
    assert len(names) > 60
    assert all(names)


def test_nothing_is_wider_than_the_window(page):
    page.click("#nested")
    for width in (390, 1280, 1920):
        page.browser.view(width, 900)
        assert page.run("document.documentElement.scrollWidth") <= width


def test_dark_and_light_have_readable_colours(page):
    for dark in (False, True):
        page.browser.view(1280, 900, dark=dark)
        page.browser.wait(
            f"document.documentElement.dataset.theme === '{'dark' if dark else 'light'}'"
        )
        for name in ("ink", "faint", "accent", "warm"):
            assert page.browser.contrast(f"var(--{name})", "var(--paper)") >= 4.5, (dark, name)
    page.click("#theme")
    assert page.run("document.documentElement.dataset.theme") == "light"


def test_the_policy_stops_other_scripts_and_connections(page):
    stopped = page.browser.stopped_by_policy()
    assert {"connect-src", "img-src", "script-src-elem"} <= set(stopped)
    page.browser.events.clear()  # the browser reports them, as it should


def test_texts_of_files_are_shown_as_text(browser, folders, tmp_path, explorer):
    hostile = "</script><img src=x onerror=alert(1)><!-- weights -->"
    model = tpt.load(folders[0])
    questions = [
        {
            "module": hostile,
            "split": hostile,
            "question": hostile,
            "answer": hostile,
            "right": False,
        }
    ]
    roles = {
        "layer": 1,
        "head": 0,
        "heads": [{"head": 0, "centroids": [[0.0] * 9, [1.0] * 9], "names": [hostile, hostile]}],
    }
    Page(models=[model], folders=[hostile], questions=questions, roles=roles).write(
        tmp_path / "page.html"
    )
    page = type(explorer)(browser, (tmp_path / "page.html").as_uri())
    page.open()
    page.run("explorer.app.ask(0, '1 + 1')")
    page.settle()
    assert page.run("document.querySelectorAll('img, iframe, object').length") == 0
    assert hostile in page.text("#evaluated")
    assert hostile in page.text("#vector")
    assert page.problems() == []
