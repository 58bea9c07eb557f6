"""Measure the explorer's times in Chromium, and take its pictures for the documentation.

    python benchmarks/explorer.py [--roles analysis/roles.json] [--figures docs/figures]

The page has the bundled models. Times are those of whole answers to the examples of all modules,
after one answer that compiles the scripts; processor time is that of all processes of the browser.
With --large, a page with the untrained TP-Transformer of the paper is measured too.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from PIL import Image  # noqa: E402

import tp_transformer as tpt  # noqa: E402
from browser import Browser  # noqa: E402, of the tests
from tp_transformer.model import bundled  # noqa: E402
from tp_transformer.show.explorer.explore import make_page  # noqa: E402

WIDTH, HEIGHT = 1280, 1000
READY = "window.explorer && explorer.app.isSettled && !explorer.app.timer"
# Milliseconds of an answer, by the clock.
TIME = """(async ({ question }) => {
  const start = performance.now();
  await explorer.client.run(0, question);
  return performance.now() - start;
})"""
# A question that is answered correctly, and a character whose role changes the answer if it is
# set to zero in all heads of the last encoder layer.
OPERATED = """(async () => {
  const point = `encoder.${DATA.models[0].config.n_layers - 1}.self_attention`;
  for (const { question, answer } of DATA.examples) {
    if (question.length > 45) continue;
    const base = await explorer.client.run(0, question);
    if (base.answer !== answer || answer.length < 2) continue;
    for (let position = 1; position < base.source.length - 1; position++) {
      const operation = { point, head: null, position, kind: "zero" };
      const changed = await explorer.client.run(0, question, [operation]);
      if (changed.answer !== answer) return { question, operation };
    }
  }
  return null;
})()"""
SHOW = """(({ question, operation }) => {
  explorer.app.askAll(question);
  explorer.app.look({ point: operation.point, head: 0, position: operation.position });
  explorer.app.addOperation(0, operation);
})"""


def main() -> None:
    """Measure, and take pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--roles", type=Path, help="roles.json of the bundled model")
    parser.add_argument("--figures", type=Path, help="the folder of the pictures")
    parser.add_argument("--large", action="store_true", help="also the paper's TP-Transformer")
    given = parser.parse_args()
    browser = Browser()
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "explorer.html"
        first, *others = bundled.names()
        beside = others[0] if others else None
        make_page(first, beside=beside, roles=given.roles).write(page)
        opened(browser, page)
        report(first, browser)
        if given.figures is not None:
            pictures(browser, given.figures)
        if given.large:
            tpt.build("tp-transformer").save(Path(name) / "large")
            make_page(Path(name) / "large").write(page)
            opened(browser, page)
            report("tp-transformer, untrained", browser, every=16)
    browser.close()


def opened(browser: Browser, page: Path) -> None:
    """Open a page, and wait for its first answer."""
    browser.view(WIDTH, HEIGHT)
    browser.open(page.as_uri())
    browser.wait(READY)


def report(name: str, browser: Browser, every: int = 1) -> None:
    """Print the times of answers to some of the examples."""
    times, spent = [], []
    for number in range(0, browser.run("DATA.examples.length"), every):
        before = browser.processor_seconds()
        times.append(browser.run(f"{TIME}(DATA.examples[{number}])"))
        spent.append(1000 * (browser.processor_seconds() - before))
    print(f"{name}, {len(times)} questions")
    for clock, found in (("by the clock", times), ("of processor time", spent)):
        print(f"  {median(found):.0f} ms {clock} (median), {max(found):.0f} ms at most")


def pictures(browser: Browser, folder: Path) -> None:
    """Take the pictures of the documentation."""
    found = browser.run(OPERATED)
    if found is None:
        raise SystemExit("no operation changes a correct answer of this model")
    browser.run(f"{SHOW}({json.dumps(found)})")
    browser.wait(READY)
    picture(browser, folder / "explorer.png")
    browser.run("explorer.app.compareNested()")
    browser.wait(READY)
    picture(browser, folder / "explorer-compare.png")


def picture(browser: Browser, file: Path) -> None:
    """Save what the window shows as a small file."""
    browser.screenshot(file, whole=False)
    Image.open(file).quantize(256).save(file, optimize=True)


if __name__ == "__main__":
    main()
