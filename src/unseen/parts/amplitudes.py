"""What a client gives away of its images' spectra (ELCFS): how wide the window is, and of how many images a spectrum is the mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.client import Client
from unseen.ops.fourier import group_means, low_amplitudes
from unseen.settings import Configured, hyper

__all__ = ["Amplitudes"]


@dataclass(frozen=True)
class Amplitudes(Configured):
    """The window of low frequencies whose amplitudes leave a client, if any do."""

    interpolate: bool = hyper(True, "frequency space interpolation; without it the raw images are used again", symbol="CFSI")
    alpha: float = hyper(0.01, "reach of the window, as a part of each side; 0: the mean colour", symbol="alpha", low=0.0, high=0.49)
    images_per_spectrum: int = hyper(
        1, "images that one spectrum is the mean of; 1 is the paper's, by which each image can be recognised", low=1
    )

    def leaving(self, client: Client) -> Tensor:
        """The spectra of the client's training images [spectra, channels, 2b + 1, b + 1]: one an image, or one a group that it draws.

        A last, incomplete group joins the one before it; fewer images than one group are one group.
        """
        images = client.images(client.batch_of(numbers=4_000_000))
        low = torch.cat([low_amplitudes(x, self.alpha).cpu() for x in images])
        return low if self.images_per_spectrum == 1 else group_means(low, self.images_per_spectrum, client.rng)

    def exposures(self) -> dict[str, float]:
        told = {"spectrum_reach": self.alpha, "images_per_spectrum": float(self.images_per_spectrum)}
        return told if self.interpolate else {}
