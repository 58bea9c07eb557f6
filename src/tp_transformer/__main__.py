"""`tpt` and `python -m tp_transformer`: handlers for Ctrl-C are installed before other imports."""

from tp_transformer.foundation import interruptions


def run() -> None:
    """Run `tpt` with the arguments of the command line, as a separate process."""
    interruptions.prepare()
    try:
        from tp_transformer.cli import main

        main()
    except SystemExit as end:
        if interruptions.received() is not None and isinstance(end.code, int):
            interruptions.end_now(end.code)
        raise
    finally:
        interruptions.hand_over()


if __name__ == "__main__":
    run()
