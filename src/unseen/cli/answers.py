"""How commands answer: a user's mistake with one message and exit code 2, a fault with what to do next, never a bare traceback."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

__all__ = ["answering", "errors", "refuse_unwritable", "say", "screen"]

_OF_A_PATH = {  # what can be wrong with a path that somebody gave
    errno.ENOENT: "there is no such file or folder",
    errno.EACCES: "you may not read or write it",
    errno.EPERM: "you may not read or write it",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.EEXIST: "it exists already",
    errno.EROFS: "it cannot be written",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "it is a link that leads to itself",
}

screen = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def say(message: str) -> None:
    """A line or several for a person. What came from another machine may stand in it, and must not move the cursor."""
    screen.print("".join(c if c.isprintable() or c == "\n" else "?" for c in message), markup=False)


@contextmanager
def answering(how_to_resume: str = "") -> Iterator[None]:
    """Turn what went wrong into words and an exit code: 2 for a mistake, 1 for a fault, 130 for Ctrl-C."""
    from unseen.errors import BadInput, ClientFailed, NoReplies

    again = f" {how_to_resume}" if how_to_resume else ""
    try:
        yield
    except BadInput as bad:
        _fail(str(bad), 2)
    except KeyboardInterrupt:
        _fail(f"stopped.{again}", 130)
    except NoReplies as error:
        _fail(str(error), 1)
    except ClientFailed as error:  # a fault in a method's code: its author needs to see where
        where = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
        _fail(f"{error}\n{where}".rstrip(), 1)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _fail(f"the disk is full. What was written so far is whole; make room.{again}", 1)
        if error.filename is None or error.errno not in _OF_A_PATH:
            raise
        _fail(f"{_as_text(error.filename)}: {_OF_A_PATH[error.errno]}; give another path", 2)


def refuse_unwritable(file: Path | None) -> None:
    """BadInput before any work is done, where a file that was named cannot be written."""
    from unseen.errors import BadInput

    if file is None:
        return
    if file.is_dir():
        raise BadInput(f"{file} is a folder; expected a file to write to")
    above = next((folder for folder in file.absolute().parents if folder.exists()), None)
    if above is None or not above.is_dir() or not os.access(above, os.W_OK):
        raise BadInput(f"{file} cannot be written, since {above} is not a folder that you may write to; give another path")


def _as_text(name: object) -> str:
    return os.fsdecode(name) if isinstance(name, bytes | str) else str(name)


def _fail(message: str, code: int) -> None:
    seen = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in message)  # a message may quote what another machine sent
    errors.print(f"[bold red]unseen:[/] {_escape(seen)}")
    raise typer.Exit(code)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
