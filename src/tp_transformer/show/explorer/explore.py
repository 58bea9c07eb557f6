"""`tpt explore`: the page of one or two models and their questions, written or served."""

import sys
import webbrowser
from pathlib import Path

from tp_transformer.errors import SettingsError
from tp_transformer.model import bundled
from tp_transformer.model.bundled import ROLES
from tp_transformer.model.checkpoint import load
from tp_transformer.show.explorer.packing import refuse_unsupported
from tp_transformer.show.explorer.page import Page
from tp_transformer.show.explorer.questions import answered_fraction, evaluated, examples, stored
from tp_transformer.show.explorer.roles import read_roles
from tp_transformer.show.explorer.server import address, serving


def make_page(
    model: Path | None,
    *,
    beside: Path | None = None,
    roles: Path | None = None,
    results: Path | None = None,
    data: Path | None = None,
) -> Page:
    """Return the page of one or two models; nothing is written."""
    if results is not None and data is None:
        raise SettingsError("--results needs --data, the store that was evaluated")
    first = model or bundled.default()
    folders = [first] if beside is None else [first, beside]
    models = []
    for folder in folders:
        models.append(load(folder))
        refuse_unsupported(models[-1], folder)
    bundled_roles = bundled.find(first) / ROLES
    if roles is None and bundled_roles.is_file():
        roles = bundled_roles
    return Page(
        models=models,
        folders=folders,
        opening=answered_fraction(models[0]),
        roles=None if roles is None else read_roles(roles, models[0]),
        examples=examples() if data is None else stored(data),
        questions=[] if results is None or data is None else evaluated(results, data),
    )


def write(page: Page, file: Path) -> None:
    """Write the page to a file."""
    page.write(file)
    print(f"{file}: open it in a browser; it needs no server and no network")


def serve(page: Page, port: int) -> None:
    """Serve the page on this machine until interrupted."""
    with serving(b"".join(page.parts()), page.policy, port) as server:
        print(f"{address(server)}: the explorer, on this machine only; Ctrl-C ends it", flush=True)
        if sys.stdout.isatty():
            webbrowser.open(address(server))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
