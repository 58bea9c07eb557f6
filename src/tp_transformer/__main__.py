"""`tpt` and `python -m tp_transformer`: handlers for Ctrl-C are installed before other imports."""

import gc

from tp_transformer.runtime import signals


def run() -> None:
    """Run `tpt` with the arguments of the command line, as a separate process."""
    signals.prepare()
    try:
        from tp_transformer.cli import main

        main()
    except SystemExit as end:
        if signals.received() is not None and isinstance(end.code, int):
            signals.end_now(end.code)
        raise
    finally:
        signals.hand_over()
        # At the end, Python searches all objects for cycles; after `import torch`, this takes half
        # a second. Frozen objects are not searched.
        gc.freeze()


if __name__ == "__main__":
    run()
