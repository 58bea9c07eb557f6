import random

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.report.explorer.page import make_page


@pytest.fixture(scope="session")
def shape():
    """The sizes of a small model with heads of 9 dimensions."""
    return {"d_model": 36, "d_ff": 50, "n_heads": 4, "n_layers": 2}


@pytest.fixture(scope="session")
def folders(tmp_path_factory, shape):
    """Two model folders: a TP-Transformer trained for a moment, and an untrained Transformer."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(1)
    briefly_trained(tpt.build("tp-transformer-tiny", **shape)).save(root / "tp")
    tpt.build("transformer-tiny", **shape).save(root / "plain")
    return root / "tp", root / "plain"


def briefly_trained(model):
    """The model after it has learned to answer sums with numbers."""
    chance = random.Random(1)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(60):
        pairs = [(chance.randrange(30), chance.randrange(30)) for _ in range(32)]
        questions = [f"What is {a} + {b}?" for a, b in pairs]
        batch = tpt.Batch.from_text(questions, [str(a + b) for a, b in pairs], model.vocabulary)
        optimizer.zero_grad()
        model.loss(batch).mean.backward()
        optimizer.step()
    return model.eval()


class Explorer:
    """The page in the browser."""

    def __init__(self, browser, address):
        self.browser = browser
        self.address = address
        self.run, self.press, self.problems = browser.run, browser.press, browser.problems

    def open(self, fragment=""):
        """Open the page anew and wait for its answers."""
        self.browser.open("about:blank")
        self.browser.open(self.address + fragment)
        self.settle()

    def reset(self):
        """Show the first question again; the page is opened anew only if another one is open."""
        if self.run("location.href").partition("#")[0] != self.address:
            self.open()
        self.browser.events.clear()
        self.run(
            """document.querySelectorAll('dialog').forEach((dialog) => dialog.close());
            document.activeElement.blur();
            chooseTheme();
            explorer.app.restore(firstState, '');"""
        )
        self.settle()

    def settle(self):
        """Wait until every answer is up to date."""
        self.browser.wait("window.explorer && explorer.app.isSettled && !explorer.app.timer")

    def click(self, selector):
        """Click an element, as a user would, and wait for the answers."""
        self.run(f"document.querySelector({selector!r}).click()")
        self.settle()

    def text(self, selector):
        """The text of an element."""
        return self.run(f"document.querySelector({selector!r}).textContent")

    def texts(self, selector):
        """The texts of all such elements."""
        return self.run(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")

    def answer(self, pane=0):
        """The answer that a pane shows."""
        pane = f"explorer.app.panes[{pane}]"
        shown = self.run(f"{pane}.answer.querySelector('.said').textContent")
        answer = self.run(f"{pane}.result.answer")
        assert shown == (answer or "(nothing)")
        return answer


@pytest.fixture(scope="session")
def explorer(browser, folders, tmp_path_factory):
    """The page with both models."""
    file = tmp_path_factory.mktemp("page") / "explorer.html"
    make_page(folders[0], beside=folders[1]).write(file)
    return Explorer(browser, file.as_uri())
