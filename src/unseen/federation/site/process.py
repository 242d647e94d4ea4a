"""The process of a site that does the work: holds data, networks and keys in memory, and answers messages on its standard streams.

`python -m unseen.federation.site.process`. The process that talks to the network never sees the data; this one never sees the network.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from unseen.data import DATASETS, load
from unseen.data.checks.check import check
from unseen.data.domain import DomainDataset
from unseen.engines.child import end_with_parent
from unseen.engines.frames import answer_stream, read_frame, write_frame
from unseen.errors import BadInput
from unseen.federation.activity import Observer
from unseen.federation.kits import open_kit
from unseen.federation.messages import SignedMessage
from unseen.federation.site.by_hand import WHILE_AT_WORK
from unseen.federation.site.policy import Rejected, read_policy
from unseen.federation.site.responder import Responder

__all__ = ["main", "site_data"]

_PATIENCE = 20.0  # seconds


def site_data(spec: str, domain: str | None, client: str, size: int | None = None) -> DomainDataset:
    """The one domain that a site holds, under the site's name."""
    dataset = load(spec, size=size)
    if domain is None and len(dataset.domains) > 1:
        where = "a data set of several sites" if spec in DATASETS else "several folders of domains"
        raise BadInput(f"{spec} holds {where} ({', '.join(dataset.names)}); say which is yours with --domain")
    own = dataset[domain] if domain is not None else dataset.domains[0]
    return dataclasses.replace(dataset, domains=(dataclasses.replace(own, name=client),))


def _set_up(settings: dict[str, Any], observer: Observer) -> tuple[Responder, dict[str, Any]]:
    folder = Path(settings["folder"])
    kit = open_kit(Path(settings["kit"]), folder)
    dataset = site_data(settings["data"], settings["domain"], kit.client, settings["size"])
    report = check(dataset)
    if not report.ok:
        raise BadInput([f"the data: {finding.message}" for finding in report.errors])
    policy = read_policy(Path(settings["policy"]) if settings["policy"] else None)
    responder = Responder(kit, dataset, policy, folder, settings["evaluates"], settings["device"], settings.get("hellos", 0), observer)
    try:
        approved = [responder.approve(_file(name)) for name in settings["approve"]]
    except Rejected as refusal:
        raise BadInput(f"this site's own rules forbid the study: {refusal}") from refusal
    warnings = [finding.message for finding in report.warnings]
    return responder, {"samples": len(dataset.domains[0]), "warnings": warnings, "approved": approved}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two processes over one ledger would spoil it. That of a killed `unseen join` ends within a second, and is waited for."""
    try:
        with FileLock(folder / ".site.lock", timeout=_PATIENCE, mode=0o600):
            yield
    except Timeout:
        raise BadInput(f"{folder} is in use by another `unseen join`; {WHILE_AT_WORK}") from None


def _file(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise BadInput(f"no study {name} ({error.strerror})") from error


def main() -> None:
    os.umask(0o077)  # memories, ledger and log are their owner's alone
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    end_with_parent()
    answers = answer_stream()
    settings, _ = read_frame(sys.stdin.buffer)
    try:
        with _alone(Path(settings["folder"])):
            responder, about = _set_up(settings, lambda event: write_frame(answers, {"told": dataclasses.asdict(event)}))
            write_frame(answers, about)
            _answer_all(responder, answers)
    except BadInput as bad:
        write_frame(answers, {"bad_input": bad.problems})


def _answer_all(responder: Responder, answers: IO[bytes]) -> None:
    """Until the process at the other end is gone."""
    while True:
        try:
            header, payload = read_frame(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if "approvals" in header:
                responder.take_up_approvals()
                write_frame(answers, {"at_rest": responder.at_rest})
                continue
            signed = responder.answer(SignedMessage(header["header"], payload, bytes.fromhex(header["signature"])))
            about = {"header": signed.header, "signature": signed.signature.hex(), "at_rest": responder.at_rest, "hellos": responder.hellos}
            write_frame(answers, about, signed.payload)
            del payload, signed  # a model must not lie here until the next question comes
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()
