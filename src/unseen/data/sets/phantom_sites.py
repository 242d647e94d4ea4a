"""Phantom sites: drawn fundus images of four clinics, so that segmentation can be tried without anyone's patients.

Nested anatomy as in glaucoma screening: an optic disc, and inside it the paler cup. Cameras and populations differ from site
to site; vessels, mottled background and vignetting are there to mislead. Nothing here is measured on people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from unseen.data.domain import UNIT, Domain, DomainDataset
from unseen.task import Segmentation

__all__ = ["phantom_sites"]

Floats = NDArray[np.float32]
Range = tuple[float, float]

SIZE = 64  # pixels of a side
MIDDLE = (SIZE - 1) / 2
VESSELS = 6
SEED = 20241  # any constant: it makes every call draw the same images
FUNDUS, DISC, CUP, BLOOD = ((0.62, 0.28, 0.13), (0.86, 0.58, 0.32), (0.97, 0.84, 0.62), (0.40, 0.08, 0.05))


@dataclass(frozen=True)
class PhantomSite:
    """A clinic: whom it sees and how its camera renders them."""

    name: str
    images: int
    radius: Range  # of the disc, in pixels
    cup: Range  # the cup's radius as a part of the disc's
    pallor: Range  # how far the cup turns from the disc's colour to its own
    crescent: float  # how bright the wasted tissue beside the disc gets; 1: like the disc itself
    cast: tuple[float, float, float]  # gain of each colour
    contrast: float  # 1: as drawn
    brightness: float  # added after the contrast
    blur: float  # pixels
    noise: float  # standard deviation
    vignette: float  # light lost in the corners


SITES = (
    PhantomSite("north", 90, (12, 16), (0.4, 0.65), (0.75, 1), 0, (1.0, 1.0, 1.0), 1.0, 0.0, blur=0.4, noise=0.02, vignette=0.3),
    PhantomSite("east", 75, (14, 19), (0.45, 0.7), (0.6, 0.9), 0.3, (1.1, 0.82, 0.58), 0.8, -0.06, blur=0.8, noise=0.03, vignette=0.5),
    PhantomSite("south", 60, (11, 15), (0.4, 0.6), (0.8, 1), 0.5, (0.78, 1.06, 1.4), 0.75, 0.15, blur=0.6, noise=0.06, vignette=0.15),
    PhantomSite("west", 45, (12, 18), (0.4, 0.75), (0.6, 0.9), 0.75, (0.7, 0.95, 0.95), 0.5, -0.12, blur=1.3, noise=0.04, vignette=0.6),
)


def phantom_sites() -> DomainDataset:
    """Four sites of 64 x 64 RGB fundus phantoms with masks of disc and cup. Every call gives equal bytes."""
    return DomainDataset(
        name="phantom-sites",
        task=Segmentation(("disc", "cup")),
        domains=tuple(_visit(site, np.random.default_rng([SEED, number])) for number, site in enumerate(SITES)),
        pixels=UNIT,
        network="unet",
        notes=("drawn, not photographed: good for trying methods out, no evidence about patients",),
    )


class _Draws:
    """Random numbers between two bounds: one per eye, or one per patient and the same for both eyes. [eyes, 1, 1]."""

    def __init__(self, rng: np.random.Generator, eyes: int) -> None:
        self.rng = rng
        self.patients = np.arange(eyes) // 2  # an odd one out came with one eye

    def patient(self, low: float, high: float) -> Floats:
        return self._spread(self.rng.uniform(low, high, self.patients[-1] + 1)[self.patients])

    def eye(self, low: float, high: float) -> Floats:
        return self._spread(self.rng.uniform(low, high, len(self.patients)))

    @staticmethod
    def _spread(values: NDArray[np.float64]) -> Floats:
        return values.astype(np.float32)[:, None, None]


class _Anatomy(NamedTuple):
    """Every pixel's place in the eye, [eyes, 64, 64] each."""

    disc: Floats  # pixels inside the disc's edge, negative outside
    cup: Floats  # pixels inside the cup's edge, never more than inside the disc's
    away: Floats  # pixels from the disc's centre
    angle: Floats  # direction from there


def _visit(site: PhantomSite, rng: np.random.Generator) -> Domain:
    draws = _Draws(rng, site.images)
    anatomy = _anatomy(site, draws)
    images = _photograph(site, _scene(site, anatomy, draws), draws)
    masks = np.stack([anatomy.disc > 0, anatomy.cup > 0], axis=1).astype(np.uint8)
    return Domain(site.name, images, masks, groups=np.array([f"{site.name}-{patient:03d}" for patient in draws.patients]))


def _anatomy(site: PhantomSite, draws: _Draws) -> _Anatomy:
    row, column = MIDDLE + draws.eye(-6, 6), MIDDLE + draws.eye(-6, 6)
    away, angle = _polar(row, column)
    radius = draws.patient(*site.radius) * draws.eye(0.95, 1.05)
    disc = _oval(radius, draws.patient(0.95, 1.2), angle, draws) - away
    aside = 0.12 * radius  # the cup sits a little off the disc's centre
    away_cup, angle_cup = _polar(row + aside * draws.eye(-1, 1), column + aside * draws.eye(-1, 1))
    ratio = draws.patient(*site.cup) * draws.eye(0.93, 1.07)
    cup = _oval(radius * ratio, draws.eye(0.9, 1.15), angle_cup, draws) - away_cup
    return _Anatomy(disc, np.minimum(cup, disc), away, angle)


def _oval(radius: Floats, tall: Floats, angle: Floats, draws: _Draws) -> Floats:
    """The distance from centre to edge of an uneven oval, by direction."""
    oval = np.asarray(radius / np.hypot(np.cos(angle), np.sin(angle) / tall), dtype=np.float32)
    for lobes in (2, 3, 5):
        oval *= 1 + 0.1 / lobes * draws.eye(-1, 1) * np.cos(lobes * angle + draws.eye(0, 2 * np.pi))
    return oval


def _scene(site: PhantomSite, anatomy: _Anatomy, draws: _Draws) -> Floats:
    """The back of the eye before any camera: colours in 0..1, [eyes, 3, 64, 64]."""
    mottle = 1 + 0.09 * (_mottle(anatomy.disc.shape, 1.5, draws.rng) + _mottle(anatomy.disc.shape, 6, draws.rng))
    scene = _colour(FUNDUS) * (mottle * draws.patient(0.85, 1.15))[:, None]
    disc = _colour(DISC) * draws.patient(0.9, 1.1)[:, None]
    scene = _mix(scene, disc, _soft(_crescent(anatomy, draws), 1.2) * site.crescent * draws.patient(0.5, 1))
    scene = _mix(scene, disc, _soft(anatomy.disc, 1.2))
    scene = _mix(scene, _colour(CUP), _soft(anatomy.cup, 1.6) * draws.eye(*site.pallor))
    return _mix(scene, _colour(BLOOD), _vessels(anatomy, draws))


def _crescent(anatomy: _Anatomy, draws: _Draws) -> Floats:
    """Depth inside the disc together with a crescent of wasted tissue on one side, which short-sighted eyes have and no mask includes."""
    side = draws.eye(-0.8, 0.8) + np.pi * (draws.eye(0, 1) > 0.5)
    return np.asarray(anatomy.disc + draws.patient(2, 6) * (1 + np.cos(anatomy.angle - side)) / 2, dtype=np.float32)


def _vessels(anatomy: _Anatomy, draws: _Draws) -> Floats:
    """Blood vessels: curved rays from the disc, thinner the farther they go. How much of each pixel they cover, 0..1."""
    away, cover = anatomy.away, np.zeros_like(anatomy.away)
    for number in range(VESSELS):
        start = 2 * np.pi * number / VESSELS + draws.eye(-0.5, 0.5)
        bearing = start + draws.eye(-0.03, 0.03) * away + draws.eye(0, 0.12) * np.sin(away / 5 + draws.eye(0, 2 * np.pi))
        turned = (anatomy.angle - bearing + np.pi) % (2 * np.pi) - np.pi
        half = draws.eye(0.3, 1) * np.exp(-away / 45)
        cover = np.maximum(cover, np.clip(half - np.abs(turned) * away + 0.5, 0, 1) * draws.eye(0.35, 0.8))
    return cover


def _photograph(site: PhantomSite, scene: Floats, draws: _Draws) -> NDArray[np.uint8]:
    """The scene as the site's camera stores it."""
    off_axis, _ = _polar(MIDDLE + draws.eye(-5, 5), MIDDLE + draws.eye(-5, 5))
    light = (1 - 2 * site.vignette * (off_axis / SIZE) ** 2) * draws.eye(0.92, 1.08)
    seen = ndimage.gaussian_filter(scene * light[:, None], (0, 0, site.blur, site.blur), mode="nearest") * _colour(site.cast)
    developed = 0.5 + site.contrast * (seen - 0.5) + site.brightness
    developed += site.noise * draws.rng.standard_normal(scene.shape, dtype=np.float32)
    return np.asarray(np.rint(np.clip(developed, 0, 1) * 255), dtype=np.uint8)


def _polar(row: Floats, column: Floats) -> tuple[Floats, Floats]:
    """Distance from that point and direction, for every pixel."""
    y, x = np.arange(SIZE, dtype=np.float32)[:, None] - row, np.arange(SIZE, dtype=np.float32) - column
    return np.hypot(y, x), np.arctan2(y, x)


def _mottle(shape: tuple[int, ...], grain: float, rng: np.random.Generator) -> Floats:
    """Smooth random blotches of unit strength."""
    blotches = ndimage.gaussian_filter(rng.standard_normal(shape, dtype=np.float32), (0, grain, grain), mode="wrap")
    return np.asarray(blotches / blotches.std(), dtype=np.float32)


def _soft(depth: Floats, edge: float) -> Floats:
    """0 outside, 1 inside, with an edge about that many pixels wide."""
    return np.asarray(np.clip(depth / (2 * edge) + 0.5, 0, 1), dtype=np.float32)


def _mix(under: Floats, over: Floats, cover: Floats) -> Floats:
    return np.asarray(under + (over - under) * cover[:, None], dtype=np.float32)


def _colour(rgb: tuple[float, float, float]) -> Floats:
    return np.array(rgb, dtype=np.float32)[:, None, None]
