"""A process that behaves as it is told: `python -m child_for_tests BEHAVIOUR`."""

from __future__ import annotations

import os
import signal
import sys
import time

from unseen.engines.child import end_with_parent
from unseen.engines.frames import answer_stream, read_frame, write_frame


def main() -> None:
    behaviour = sys.argv[1]
    if behaviour == "stays with its parent":
        end_with_parent()
        time.sleep(600)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stays" else signal.SIG_DFL)
    answers = answer_stream()
    if behaviour == "writes":
        while True:
            answers.write(bytes(2**16))
    if behaviour == "stays":
        print("ready", file=sys.stderr, flush=True)
        time.sleep(600)
    while True:
        try:
            header, body = read_frame(sys.stdin.buffer)
        except EOFError:
            break
        if header.get("die") == "between":
            os._exit(7)
        if header.get("die") == "within":
            answers.write((100).to_bytes(4, "little") + b'{"a')
            answers.flush()
            os._exit(7)
        write_frame(answers, {"echo": header["say"], "threads": os.environ.get("OMP_NUM_THREADS")}, body)
    if behaviour == "ignores":  # the end of its input
        time.sleep(600)


if __name__ == "__main__":
    main()
