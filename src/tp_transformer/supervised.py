"""`python -m tp_transformer.supervised` is `tpt` that stops when its standard input ends.

The process that starts it holds the other end of a pipe. When that process ends for any reason, the
system closes the pipe, and this process stops as at SIGTERM: training saves a checkpoint, from
which it can resume.
"""

import os
import signal
import sys
import threading

from tp_transformer.__main__ import run


def _stop_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    run()
