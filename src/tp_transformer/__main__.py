"""`tpt` and `python -m tp_transformer`: handlers for Ctrl-C are installed before other imports.

If the environment variable TPT_SUPERVISED is set, `tpt` stops when its standard input ends. The
process that starts it holds the other end of a pipe. When that process ends for any reason, the
system closes the pipe, and this process stops as at SIGTERM: training saves a checkpoint, from
which it can resume.
"""

import gc
import os
import signal
import sys
import threading

from tp_transformer.runtime import signals


def run() -> None:
    """Run `tpt` with the arguments of the command line, as a separate process."""
    signals.prepare()
    if os.environ.pop("TPT_SUPERVISED", None):
        threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
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


def _stop_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    run()
