"""The explorer: a page in which a model runs in the browser, as one file or on a local server."""
