"""FedNova. Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS 2020.

FedAvg pulls harder towards clients that take more steps, and so minimises another objective than the weighted mean of theirs. Here a client
divides its change by how far its steps go, |a_k|; the server averages these directions by the number of samples, and goes as far along
their mean as the clients went on average, tau_eff.

|a_k| is the number of steps for plain SGD, and known in closed form for momentum that begins at zero, as it does in every round
here. For Adam and a user's own optimiser it is not known: they are refused. The proximal form of |a_k| is left out.
Buffers are averaged by the number of samples. A client that is missing in a round has no part in the means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Global, Method, Surroundings, on_client
from unseen.ops.averaging import means
from unseen.ops.normalised import accumulated_steps
from unseen.parts.combining import Down
from unseen.parts.local import Local
from unseen.payload import Payload, State, carries
from unseen.settings import group
from unseen.state import only, state_of

__all__ = ["FedNova"]


class Normalised(Payload):
    direction: State = carries("update", of="model", part="parameters", mean=True)  # (x_k - x) / |a_k|
    buffers: State = carries("model", part="buffers", mean=True)
    reach: float = carries("number", mean=True, low=0.0)  # |a_k|
    samples: int = carries("count")  # n_k


@dataclass(frozen=True)
class FedNova(Method[Global]):
    """Clients that take more steps pull no harder for that."""

    paper = "Wang et al., NeurIPS 2020"
    compiles = True

    local: Local = group(
        Local(optimizer="momentum", lr=0.02, batch=32, weight_decay=1e-4), symbols={"epochs": "E", "batch": "B", "lr": "eta"}
    )

    def contradictions(self) -> Iterable[str]:
        if self.local.optimizer not in ("sgd", "momentum"):
            yield f'optimizer is {str(self.local.optimizer)!r}, and how far its steps go is not known; set optimizer = "sgd" or "momentum"'

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        for name in sorted(name for name, samples in around.training.items() if not samples):
            yield f"client {name!r} has no training image, so it takes no step to divide by; leave it out"

    @on_client
    def train(self, down: Down, client: Client) -> Normalised:
        net, optimizer = self.local.begin(client, down.model)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.local.loss(client.task, net, x, y, mixing))

        steps = 0
        for steps, batch in enumerate(self.local.batches(client), 1):  # noqa: B007
            step(*batch)
        reached, reach = state_of(net), accumulated_steps(steps, optimizer.param_groups[0]["momentum"])
        return Normalised(
            direction={
                name: (w - down.model[name].to(w.device)) / reach for name, w in only(reached, client.entries("parameters")).items()
            },
            buffers=only(reached, client.entries("buffers")),
            reach=reach,
            samples=client.samples,
        )

    def round(self, state: Global, clients: Cohort) -> Global:
        """x <- x + tau_eff sum_k p_k d_k, with tau_eff = sum_k p_k |a_k| and p_k = n_k / n."""
        ups = clients.ask(self.train, Down(model=state.model)).values()
        direction, buffers, far = means(
            ((up.direction, up.buffers, {"reach": torch.tensor(up.reach, dtype=torch.float64)}), up.samples) for up in ups
        )
        moved = {name: state.model[name].to(d.device) + float(far["reach"]) * d for name, d in direction.items()}
        return Global({**state.model, **buffers, **moved})
