"""The explorer: a page in which a model runs in the browser, as a file or on a local server."""
