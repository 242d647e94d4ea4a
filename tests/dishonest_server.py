"""A server that has the federation's key and asks for whatever it likes: the opponent of a site in the tests of attacks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from federation_in_memory import FederationInMemory
from unseen import Experiment
from unseen.federation.kits import open_kit
from unseen.federation.messages import Message, SignedMessage, sign
from unseen.federation.server.exchange import Terms
from unseen.federation.server.proposing import propose
from unseen.federation.study.approvals import Approval, approve
from unseen.federation.study.study import Participant, Study
from unseen.methods import METHODS
from unseen.parts import PARTS
from unseen.payload import Payload
from unseen.settings import build


@dataclass(frozen=True)
class Answer:
    """A site's signed answer, as the server has it."""

    header: dict[str, Any]
    payload: bytes

    @property
    def given(self) -> bool:
        assert self.header["status"] in ("ok", "refused"), f"the site neither answered nor refused: {self.header}"
        return bool(self.header["status"] == "ok")

    @property
    def reason(self) -> str:
        return str(self.header["reason"])


class DishonestServer:
    """Proposes an honest study first; then changes what it says, signs it, and asks. The other sites sign whatever it likes."""

    def __init__(
        self, federation: FederationInMemory, method: str = "fedavg", set: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        self.federation, self.key = federation, federation.server.signing
        settings = {"network": "small_cnn:width=2", "augment": "none", "device": "cpu", "rounds": 1, **settings}
        self.experiment = Experiment(build(METHODS[method], set or {}, PARTS), data="town", target=federation.target, **settings)
        self.study = propose(self.experiment, federation.server, federation.carrier, Terms(), lambda message: None)
        self.sent: SignedMessage | None = None

    def fresh(self) -> dict[str, torch.Tensor]:
        """Weights that the study states."""
        from unseen.federation.cards import server_world

        sites = dict.fromkeys(self.study.participants, (100, 10))
        world = server_world(self.experiment, self.study.schema, sites, {n: p.evaluates for n, p in self.study.participants.items()})
        return dict(world.fresh("task"))

    def changed(self, set: Mapping[str, Any] | None = None, experiment: Mapping[str, Any] | None = None, **study: Any) -> Study:
        """Another study: with these settings of the method, these around it, these entries of its own."""
        described = {**self.study.experiment, **(experiment or {})}
        described["set"] = {**described["set"], **(set or {})}
        return dataclasses.replace(self.study, experiment=described, proposal=f"{id(described)}", **study)

    def made_up(self, number: int) -> dict[str, Participant]:
        """Sites that do not exist, with keys of the server's making."""
        self._made_up = {f"site-{n}": Ed25519PrivateKey.generate() for n in range(number)}
        return {name: Participant(key.public_key().public_bytes_raw().hex(), "", "", False) for name, key in self._made_up.items()}

    def begin(self, site: str, study: Study) -> Answer:
        """Have the site approve the study by its rules, and tell it that everyone else did."""
        begun = self.deliver(site, {"task": "begin", "study": study.digest}, study.signed(self.key))
        if not begun.given:
            return begun
        approvals = [begun.header["approval"], *(self._approval(study, name).plain() for name in study.participants if name != site)]
        return self.deliver(site, {"task": "agreed", "study": study.digest}, json.dumps(approvals).encode())

    def ask(self, site: str, down: Payload, study: Study | None = None, at: tuple[int, int] = (1, 1), **lies: Any) -> Answer:
        """Begin a study at a site, and ask there. Without a study it is the honest one."""
        study = study or self.changed()
        begun = self.begin(site, study)
        return self.question(site, down, study, at, **lies) if begun.given else begun

    def question(self, site: str, down: Payload, study: Study, at: tuple[int, int] = (1, 1), **lies: Any) -> Answer:
        header = {"task": "ask", "study": study.digest, "round": at[0], "ask": at[1], "step": 0, "versions": {}, **lies}
        return self.deliver(site, header, down.to_bytes())

    def deliver(self, site: str, header: Mapping[str, Any], payload: bytes = b"") -> Answer:
        whole = {"federation": self.federation.server.id, "to": site, **header}
        self.sent = sign(Message(whole, payload), self.key, "question")
        answer = self.federation.carrier.responders[site].answer(self.sent)
        return Answer(json.loads(answer.header), answer.payload)

    def _approval(self, study: Study, name: str) -> Approval:
        if name in self.federation.dataset.names:
            key = open_kit(self.federation.server.path / "kits" / f"{name}.kit", self.federation.folder / name).signing
        else:
            key = self._made_up[name]
        box = X25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())  # the server has it
        return approve(study, name, 100, 10, key, box.public_key().public_bytes_raw().hex() if study.sums else None)
