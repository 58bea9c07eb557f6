"""`tpt explore`: a model in a page that computes it in the browser."""

from pathlib import Path

from jsonargparse import Namespace

from tp_transformer.foundation.ranges import Port
from tp_transformer.verbs.verb import MODEL, Verb


def _explore(options: Namespace) -> None:
    from tp_transformer.show.explorer.explore import make_page, serve, write

    page = make_page(
        options.model,
        beside=options.beside,
        roles=options.roles,
        results=options.results,
        data=options.data,
    )
    if options.out is None:
        serve(page, options.port)
    else:
        write(page, options.out)


EXPLORE = Verb(
    "look into a model in the browser: answers, attention, roles, and operations on them",
    _explore,
    {
        "--model": MODEL,
        "--beside": {"type": Path | None, "help": "a second model, to compare"},
        "--roles": {
            "type": Path | None,
            "help": "roles.json of `tpt interpret roles`: clusters with names",
        },
        "--results": {
            "type": Path | None,
            "help": "results of `tpt evaluate`: its questions, wrong ones first",
        },
        "--data": {"type": Path | None, "help": "the store that --results is about"},
        "--out": {
            "type": Path | None,
            "help": "write the page as one HTML file, instead of serving it",
        },
        "--port": {"type": Port, "default": 8765, "help": "port of the local server; 0 is any"},
    },
)
