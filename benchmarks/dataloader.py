"""What one would run instead: FedAvg as a plain PyTorch script with DataLoaders, against `unseen` on the same images and device.

    python benchmarks/dataloader.py --data PACS --target photo --workers 4 8 16
    python benchmarks/dataloader.py --data PACS --target photo --limit 64 --size 64 --workers 2 --device cpu --precision fp32

PATH holds <domain>/<class>/<image>. The script is written as a careful user would: JPEG decoding and DomainBed's transforms per image in
worker processes that live on from round to round, pinned memory, copies that do not wait, channels_last on a GPU, fused Adam,
cudnn.benchmark, bf16 by autocast. Transforms are torchvision's, in Pillow, written out (torchvision is not needed). Both sides train every
image of the sources once a round, at every client, and average; rounds take turns and the fastest counts. `unseen` decodes the data
once before round 1: that time is told, and after how many rounds it has paid.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from unseen import Domain, DomainDataset, Experiment, FedAvg
from unseen.data import load
from unseen.engines.local import LocalEngine
from unseen.networks import build_network
from unseen.world import build_world

MEAN, STD = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1), torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)
LR = 1e-4


class Images(Dataset[tuple[Tensor, int]]):
    """One client's files, decoded and augmented whenever they are asked for."""

    def __init__(self, files: list[tuple[Path, int]], size: int) -> None:
        self.files, self.size = files, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        file, label = self.files[number]
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        image = cropped(image, self.size)
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        image = jittered(image)
        if random.random() < 0.1:
            image = image.convert("L").convert("RGB")
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
        return pixels.sub_(MEAN).div_(STD), label


def cropped(image: Image.Image, size: int) -> Image.Image:
    """RandomResizedCrop(size, scale=(0.7, 1.0))."""
    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(0.7, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h))
    return image.resize((size, size), Image.Resampling.BILINEAR)


def jittered(image: Image.Image) -> Image.Image:
    """ColorJitter(0.3, 0.3, 0.3, 0.3), its four parts in random order."""

    def enhanced(kind: Any) -> Callable[[Image.Image], Image.Image]:
        return lambda im: kind(im).enhance(random.uniform(0.7, 1.3))

    parts = [enhanced(ImageEnhance.Brightness), enhanced(ImageEnhance.Contrast), enhanced(ImageEnhance.Color), turned]
    random.shuffle(parts)
    for part in parts:
        image = part(image)
    return image


def turned(image: Image.Image) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.asarray(hue) + np.uint8(int(random.uniform(-0.3, 0.3) * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


def own_seed(_worker: int) -> None:
    """Python's generator is a copy in every worker; without this all of them would draw the same."""
    random.seed(torch.initial_seed())


class Script:
    """FedAvg as one writes it in an afternoon."""

    def __init__(
        self, clients: dict[str, list[tuple[Path, int]]], classes: int, given: argparse.Namespace, precision: str, workers: int
    ) -> None:
        self.device, self.precision = torch.device(given.device), precision
        self.on_gpu = self.device.type == "cuda"
        self.net = build_network(given.network, outputs=classes, channels=3, size=(given.size, given.size)).to(self.device)
        if self.on_gpu:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.loaders = {
            name: DataLoader(
                Images(files, given.size),
                given.batch,
                shuffle=True,
                num_workers=workers,
                pin_memory=self.on_gpu,
                persistent_workers=workers > 0,
                prefetch_factor=4 if workers else None,
                worker_init_fn=own_seed,
            )
            for name, files in clients.items()
        }

    def round(self) -> None:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=torch.backends.cudnn.allow_tf32):
            self._round()

    def _round(self) -> None:
        sums: dict[str, Tensor] = {}
        total = sum(len(loader.dataset) for loader in self.loaders.values())  # type: ignore[arg-type]
        for loader in self.loaders.values():
            self.train(loader)
            share = len(loader.dataset) / total  # type: ignore[arg-type]
            for name, value in self.net.state_dict().items():
                part = value * share if value.is_floating_point() else value.clone()
                sums[name] = part if name not in sums else sums[name] + part if value.is_floating_point() else part
        self.model = sums

    def train(self, loader: DataLoader[tuple[Tensor, int]]) -> None:
        self.net.load_state_dict(self.model)
        self.net.train()
        optimizer = torch.optim.Adam(self.net.parameters(), lr=LR, fused=self.on_gpu)
        for x, y in loader:
            x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
            if self.on_gpu:
                x = x.contiguous(memory_format=torch.channels_last)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                loss = F.cross_entropy(self.net(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()


class Ours:
    """The same with `unseen`."""

    def __init__(self, data: DomainDataset, given: argparse.Namespace, precision: str, folder: Path) -> None:
        method = FedAvg(batch=given.batch, lr=LR)
        around = {"device": given.device, "precision": precision, "network": given.network, "threads": given.threads}
        world = build_world(Experiment(method, data, given.target, augment="domainbed", validation=0.0, **around))
        self.method, self.engine, self.number = method, LocalEngine(world, folder), 0
        self.state = method.start(world.fresh, self.engine.cohort(0))

    def round(self) -> None:
        self.number += 1
        cohort = self.engine.cohort(self.number)
        self.state = self.method.round(self.state, cohort)
        cohort.close()


def timed(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def files_of(root: Path, limit: int | None) -> tuple[dict[str, list[tuple[Path, int]]], list[str]]:
    """Every image by domain with its class, and the classes."""
    found = sorted(f for f in root.glob("*/*/*") if f.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not found:
        raise SystemExit(f"no images below {root}; expected <domain>/<class>/<image>")
    classes = sorted({f.parent.name for f in found})
    domains = sorted({f.parent.parent.name for f in found})
    return {d: spread([(f, classes.index(f.parent.name)) for f in found if f.parent.parent.name == d], limit) for d in domains}, classes


def spread(items: Any, limit: int | None) -> Any:
    """At most that many, taken from all over."""
    return items if limit is None or len(items) <= limit else items[:: math.ceil(len(items) / limit)]


def compare(
    data: DomainDataset, clients: dict[str, list[tuple[Path, int]]], classes: int, given: argparse.Namespace, precision: str
) -> float:
    """Prints a line for every number of workers; the seconds that a round of `unseen` takes less than the best script's."""
    images = sum(len(files) for files in clients.values())
    gain = 0.0
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(data, given, precision, Path(folder))
        for _ in range(given.warm_up):
            ours.round()
        for workers in given.workers:
            script = Script(clients, classes, given, precision, workers)
            script.round()
            times: dict[str, list[float]] = {"script": [], "unseen": []}
            for _ in range(given.rounds):
                times["script"].append(timed(script.round, given.device))
                times["unseen"].append(timed(ours.round, given.device))
            theirs, our = min(times["script"]), min(times["unseen"])
            gain = theirs - our if workers == given.workers[0] else min(gain, theirs - our)
            print(f"{precision}  {workers:>7} {images / theirs:>10.0f} {images / our:>10.0f} {theirs / our:>8.2f}", flush=True)
            del script
    return gain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with <domain>/<class>/<image>")
    parser.add_argument("--target", help="the domain that neither side trains on; default the last")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8, 16], help="of each DataLoader")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1, help="on a CPU, of both sides")
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds of each side")
    parser.add_argument("--warm-up", type=int, default=4, help="rounds of unseen before them (on a GPU steps are recorded in these)")
    parser.add_argument("--limit", type=int, help="at most so many images a domain")
    parser.add_argument("--cache", type=Path, help="where unseen keeps the decoded data; default a folder that is removed at the end")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    by_domain, classes = files_of(given.data, given.limit)
    given.target = given.target or list(by_domain)[-1]
    if given.target not in by_domain:
        raise SystemExit(f"no domain {given.target!r} in {given.data}; there are: {', '.join(by_domain)}")
    clients = {name: files for name, files in by_domain.items() if name != given.target}
    images = sum(len(files) for files in clients.values())
    about = f"FedAvg, {given.network}, batch {given.batch}, {given.size} px, {len(clients)} clients, {images} images a round"
    print(f"{about}; torch {torch.__version__}")
    print(torch.cuda.get_device_name() if given.device == "cuda" else f"CPU, {given.threads} threads")
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        whole = load(f"folder:{given.data}", cache=given.cache or Path(scratch), size=given.size)
        decoding = time.perf_counter() - began
        domains = tuple(Domain(d.name, spread(d.images, given.limit), spread(d.labels, given.limit)) for d in whole.domains)
        data = DomainDataset(whole.name, whole.task, domains, pixels=whole.pixels, network=given.network)
        print(f"unseen decoded {sum(len(d) for d in whole.domains)} images once, in {decoding:.1f} s\n")
        print(f"{'':<5} workers     script     unseen    ratio   (images a second)")
        gains = [compare(data, clients, len(classes), given, precision) for precision in given.precision]
    if min(gains) > 0:
        print(f"\nagainst the fastest script the decoding has paid after {decoding / min(gains):.1f} rounds")


if __name__ == "__main__":
    main()
