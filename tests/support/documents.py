"""The documents of the project, and what stands in them."""

import re
import shlex
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(language, text=README):
    """The fenced blocks of a language; of none, if it is empty."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [content for name, content in found if name == language]


def prose(text):
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text):
    """Where the links and images of a text lead."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(text)) + re.findall(r'<img src="([^"]+)"', text)


def anchors(text):
    """The anchors of the headings of a page, as both builders of the site make them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), flags=re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", word) for word in words}


def commands(text):
    """What the text would have its reader type, each command as a list of words."""
    lines = "\n".join(blocks("console", text)).replace("\\\n", " ").splitlines()
    typed = [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]
    return [
        list(words)
        for line in typed
        for is_joint, words in groupby(line, lambda word: word == "&&")
        if not is_joint
    ]
