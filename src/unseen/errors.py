"""What a user, a client or a machine can get wrong, told apart so that each is answered in its own way."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["BadInput", "ClientFailed", "NoReplies", "OutOfRange", "RefusedReply", "SiteProcessLost", "choose", "nearest"]


class BadInput(ValueError):
    """A user's mistake: one message with everything that is wrong, and exit code 2 on the command line.

    >>> print(BadInput(["rounds is -1; give at least 1", "no field 'lrr'; did you mean 'lr'?"]))
    2 problems:
      - rounds is -1; give at least 1
      - no field 'lrr'; did you mean 'lr'?
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        text = self.problems[0] if len(self.problems) == 1 else f"{len(self.problems)} problems:"
        if len(self.problems) > 1:
            text += "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(text)


class ClientFailed(RuntimeError):
    """A client's task raised an error in this process: a fault in the method, not a missing client."""


class RefusedReply(ValueError):
    """A reply that must not count: not what was declared, or not finite."""


class OutOfRange(RefusedReply):
    """A reply as declared, with a number that is no loss, no accuracy or no weight. A run that diverges may come to it by itself."""


class SiteProcessLost(RuntimeError):
    """The process that holds a site's data ended while it worked, and ended again."""


class NoReplies(RuntimeError):
    """Nobody gave a usable answer, so there is nothing to aggregate."""


_OTHER_WORDS = {"gpu": "cuda", "fp16": "bf16", "bfloat16": "bf16", "float32": "fp32", "markdown": "md", "latex": "tex", "test": "target"}


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'fedsb'?` for a near miss, else the list of what there is.

    >>> nearest("fedbs", ["fedsb", "fedavg"])
    "; did you mean 'fedsb'?"
    >>> nearest("zebra", ["fedsb", "fedavg"])
    '; there are: fedavg, fedsb'
    >>> nearest("gpu", ["auto", "cpu", "cuda"])
    "; did you mean 'cuda'?"
    """
    options = sorted(known)
    if _OTHER_WORDS.get(name.lower()) in options:
        return f"; did you mean {_OTHER_WORDS[name.lower()]!r}?"
    swapped = [option for option in options if sorted(option) == sorted(name)]  # two letters in the wrong order
    close = swapped or difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(options)}"


def choose(what: str, name: str, known: Iterable[str]) -> str:
    """`name`, or a BadInput that names the nearest one known."""
    options = list(known)
    if name not in options:
        raise BadInput(f"no {what} {name!r}{nearest(name, options)}")
    return name
