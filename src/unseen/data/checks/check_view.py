"""A checked data set as people read it on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unseen.data.checks.domain_card import DomainCard, Intensity, Masks
from unseen.data.checks.findings import Finding

__all__ = ["bars", "show_card", "show_findings"]

_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN = 6  # entries of a long list


def show_card(console: Console, card: DomainCard) -> None:
    """One domain as a table of two columns."""
    table = Table(title=escape(card.domain), title_justify="left", show_header=False)
    height, width = card.size
    rows = {"samples": str(card.samples), "image": f"{width} x {height} px, {card.channels} channel{'s' * (card.channels != 1)}"}
    if card.classes:
        rows["classes"] = ", ".join(f"{name} {count}" for name, count in card.classes.items())
    if card.groups is not None:
        rows["patients"] = f"{card.groups} (or slides, volumes)"
    if card.spacing is not None:
        rows["spacing"] = "\n".join(
            f"{axis} {low:.3g} to {high:.3g} mm, median {mid:.3g}" for axis, (low, mid, high) in card.spacing.items()
        )
    if card.intensity is not None:
        rows |= _intensity_rows(card.intensity)
    if card.masks is not None:
        rows |= _mask_rows(card.masks)
    rows |= _prepared_rows(card.prepared)
    for name, text in rows.items():
        table.add_row(name, escape(text))
    console.print(table)


def show_findings(console: Console, name: str, errors: Sequence[Finding], warnings: Sequence[Finding]) -> None:
    """Errors, then warnings, then the count of both; in words as well as in colour."""
    for style, findings in (("bold red", errors), ("yellow", warnings)):
        for finding in findings:
            console.print(f"[{style}]{finding.severity}[/] [bold]{escape(finding.domain)}[/]: {escape(finding.message)}", soft_wrap=True)
    verdict = f"{_count(len(errors), 'error')}, {_count(len(warnings), 'warning')}"
    console.print(f"[{'bold red' if errors else 'green'}]{escape(name)}[/]: {verdict}")


def bars(shares: Sequence[float]) -> str:
    """A histogram as one line of text, the largest bin full; a bin that is not empty always shows.

    >>> bars([0.0, 0.25, 0.5, 0.001])
    ' ▄█▁'
    """
    top, steps = max(shares, default=0), len(_BARS) - 1
    return "".join(_BARS[max(round(steps * share / top), 1)] if share > 0 else " " for share in shares)


def _intensity_rows(intensity: Intensity) -> dict[str, str]:
    moments = (", ".join(f"{value:.3f}" for value in values) for values in (intensity.mean, intensity.std))
    return {"mean, std": "mean {}; std {}".format(*moments), "intensity": f"0 |{bars(intensity.histogram)}| 255"}


def _mask_rows(masks: Masks) -> dict[str, str]:
    lines = [
        f"{name}: {share:.1%} of the image, {len(masks.empty[name])} empty, {len(masks.full[name])} full"
        for name, share in masks.foreground.items()
    ]
    return {"masks": "\n".join(lines), "mask values": ", ".join(masks.values)}


def _prepared_rows(prepared: Mapping[str, Any]) -> dict[str, str]:
    names = {"sizes": "file sizes", "modes": "file modes", "mask_values": "file masks", "unreadable": "unreadable"}
    rows = {title: _shortened(prepared[key]) for key, title in names.items() if prepared.get(key)}
    if "width" in prepared and "height" in prepared:
        widths, heights = (" to ".join(map(str, prepared[side])) for side in ("width", "height"))
        rows["file sizes"] = f"width {widths}, height {heights} px"
    return rows


def _shortened(value: Any) -> str:
    """The first entries of a list or of a mapping, the rest as a number."""
    if isinstance(value, Mapping):
        items = [f"{key}: {number}" for key, number in value.items()]
    elif isinstance(value, list | tuple):
        items = [str(item) for item in value]
    else:
        items = [str(value)]
    rest = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
