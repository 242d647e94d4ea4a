"""FedGCA. Liu et al., "FedGCA: global consistent augmentation based single-source federated domain generalization", 2024.

All clients hold data of one domain. Each restyles its images at random (style complement), and asks the model for the same
predictions and the same class activation maps on every view, guided by the global model; FedDyn's regulariser holds the clients
together.

The paper does not give: J, the optimiser, its learning rate, the batch, local epochs, rounds (the defaults are those of
the code it cites); the form of the style-complement module (one of four random convolutions drawn for each copy); how a map becomes a
distribution (softmax over positions, of the true class; `unseen.ops.cam` says what a map is in networks without average pooling);
whether the mean prediction is differentiated (it is; `stop_mean`); how Eq. 2 sums over classes (`over_classes`). The global model
predicts in evaluation mode. Eq. 2 is a binary cross entropy where the text says KL divergence: `consistency`. It sums over "P", which may
be the local model's predictions or the global one's too: `summed`.
lambda covers parameters, not buffers. Full participation is the paper's; a client that is missing in a round keeps its lambda, and
the server sums over those who replied and divides by all, as in FedDyn.
MixStyle acts in the local model alone; a sharpness-aware step climbs on the whole of Eq. 6.
With beta = 0 and no copies the method is FedDyn, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, Surroundings, on_client
from unseen.networks.base import Outputs, TaskNet
from unseen.ops.cam import map_distribution, reads_positions
from unseen.ops.consistency import Consistency, OverClasses, by_view, map_consistency, mean_of_views, prediction_consistency
from unseen.ops.randconv import restyled_views
from unseen.parts.combining import Down
from unseen.parts.dynamic import Dynamic, DynamicPenalty, DynamicUp, combine_dynamic
from unseen.parts.local import Local
from unseen.parts.views import chosen_styles, predictions, repeat_labels, strange_styles, unread_sum
from unseen.settings import group, hyper
from unseen.task import Task

__all__ = ["FedGCA"]

_DIGITS = {"rounds": 100, "augment": "none"}
_PACS = {
    "alpha": 10.0, "beta": 8.0, "lr": 0.004, "epochs": 1,
    "rounds": 50, "network": "resnet18", "weights": "imagenet", "augment": "none",
}  # fmt: skip


@dataclass(frozen=True)
class FedGCA(Method[Dynamic]):
    """Restyled copies of one source domain, on which the local and the global model must agree."""

    tasks = ("classification",)
    paper = "Liu et al., 2024"
    presets = {
        "paper": _DIGITS,
        "pacs": _PACS,
        "kl": {**_DIGITS, "consistency": "kl"},  # Eq. 2 as its text has it, at the printed weights
        "pacs-kl": {**_PACS, "consistency": "kl"},
    }

    alpha: float = hyper(0.1, "weight of the class consistency, above 0", symbol="alpha, Eq. 5-6", low=0.0)
    beta: float = hyper(0.1, "weight of the semantic consistency", symbol="beta, Eq. 6", low=0.0)
    copies: int = hyper(3, "restyled copies of each image", symbol="J", low=0, high=32)
    styles: str = hyper("randconv, repeated, mixing, texture", "what a copy may be, one drawn for each")
    local_predictions: bool = hyper(True, "the predictions on all views are to agree", symbol="P, Table 3")
    global_predictions: bool = hyper(True, "the global model's predictions join the mean", symbol="P^G, Table 3")
    local_maps: bool = hyper(True, "the activation maps of all views are to agree", symbol="M, Table 3")
    global_maps: bool = hyper(True, "the global model's maps join the mean", symbol="M^G, Table 3")
    consistency: Consistency = hyper("bce", "bce: Eq. 2 as printed; kl: as its text says")
    summed: Literal["local", "all"] = hyper("local", "what Eq. 2 sums over: P_i, or P_i and P_i^G", symbol="P, Eq. 2")
    over_classes: OverClasses = hyper("mean", "how bce becomes one number")
    stop_mean: bool = hyper(False, "no gradient through the mean prediction and the mean map")
    local: Local = group(
        Local(epochs=5.0, batch=32, optimizer="momentum", lr=0.01),
        symbols={"lr": "eta"},
        meanings={"batch": "images in a batch, before they are restyled"},
        without=["views", "rsc", "jigen"],
    )

    def contradictions(self) -> Iterable[str]:
        if self.alpha == 0:
            yield "alpha is 0, and the server divides by it; give a small number"
        for what in ("predictions", "maps"):
            if getattr(self, f"global_{what}") and not getattr(self, f"local_{what}"):
                yield f"global_{what} is on and local_{what} off, but the loss compares the local ones; switch both off, or local_{what} on"
        if self.summed == "all" and not self.global_predictions:
            yield "summed is all, but global_predictions is off, so there are local ones alone; switch it on, or set summed = local"
        yield from unread_sum(self.consistency, self.over_classes)
        yield from strange_styles(self.styles)

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        if not (self.beta and self.local_maps):
            return
        advice = "set local_maps and global_maps to false, or use another network"
        seen = around.net.eval()(torch.zeros(1, around.shapes.channels, *around.shapes.size), full=True)
        if not seen.maps or seen.maps[-1].ndim != 4:
            yield f"{type(around.net).__name__} has no maps to compare; {advice}"
        elif seen.maps[-1][0, 0].numel() == 1:
            yield f"{type(around.net).__name__} has a single position in its maps on images of {around.shapes.size[0]} pixels; {advice}"
        elif not (reads_positions(around.net) or seen.maps[-1].requires_grad):
            yield f"nothing before the maps of {type(around.net).__name__} is trained, and they are compared by their gradients; {advice}"

    @on_client
    def train(self, down: Down, client: Client) -> DynamicUp:
        net, optimizer = self.local.begin(client, down.model)  # w_i
        guide = client.frozen("task", down.model)  # w^t
        penalty = DynamicPenalty(client, net, down.model, self.alpha)  # alpha L_OC, Eq. 5: FedDyn's

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:  # X+, and the labels of one view
            labels = repeat_labels(y, len(x))
            told = self.guidance(client.task, guide, x, labels, len(y)) if self.beta else (None, None)

            def loss() -> Tensor:  # Eq. 6 without alpha L_OC, whose gradient is known
                seen = self.local.look(net, x, mixing)
                total = client.task.loss(seen.logits, labels, self.local.smoothing)
                if self.beta:
                    total = total + self.beta * self.semantic_consistency(client.task, net, seen, told, labels, len(y))
                return total

            self.local.descend(net, optimizer, loss, penalty.add_gradient)

        for batch in self.local.batches(client, self.restyled):
            step(*batch)
        return penalty.upload()

    def restyled(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """X+: the images and J copies of each."""
        return restyled_views(x, self.copies, chosen_styles(self.styles), rng)

    def guidance(self, task: Task, guide: TaskNet, x: Tensor, labels: Tensor, samples: int) -> tuple[Tensor | None, Tensor | None]:
        """P^G and M^G, what the global model says of the views: without gradient, and None where switched off."""
        if not (self.global_predictions or self.global_maps):
            return None, None
        by_gradient = self.global_maps and not reads_positions(guide)  # its maps are made by differentiating it
        with torch.set_grad_enabled(by_gradient):
            told = guide(x.detach().requires_grad_(by_gradient), full=True)
        predicted = by_view(predictions(task, told.logits).detach(), samples) if self.global_predictions else None
        maps = by_view(map_distribution(guide, told, labels, again=False).detach(), samples) if self.global_maps else None
        return predicted, maps

    def semantic_consistency(
        self, task: Task, net: TaskNet, seen: Outputs, told: tuple[Tensor | None, Tensor | None], labels: Tensor, samples: int
    ) -> Tensor:
        """L_GC = L_CP + L_CAM (Eq. 4), each over those predictions and maps that are switched on."""
        total = seen.logits.new_zeros(())
        if self.local_predictions:
            local = by_view(predictions(task, seen.logits), samples)
            average = mean_of_views(local, told[0], stop=self.stop_mean)
            compared = torch.cat([local, told[0]]) if self.summed == "all" and told[0] is not None else local
            total = total + prediction_consistency(compared, average, self.consistency, self.over_classes)  # Eq. 2
        if self.local_maps:
            local = by_view(map_distribution(net, seen, labels), samples)
            total = total + map_consistency(local, mean_of_views(local, told[1], stop=self.stop_mean))  # Eq. 3
        return total

    def round(self, state: Dynamic, clients: Cohort) -> Dynamic:
        return combine_dynamic(clients, clients.ask(self.train, Down(model=state.model)), state, self.alpha)
