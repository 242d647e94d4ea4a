"""The site's two hooks: a notebook becomes a page, and a file of the repository that a page links to becomes part of the site.

mkdocs calls `on_files` and `on_page_markdown` (mkdocs.yml, `hooks`).
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE = "repository"  # where files from outside docs/ lie in the site
SHOWN_AS = {".toml": "toml", ".py": "python", ".txt": "text", ".service": "ini", ".cff": "yaml"}  # as a page with their text
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)]*)?(\))")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Notebooks as pages; then everything outside docs/ that a page links to, and what those link to."""
    for file in [f for f in files if f.src_uri.endswith(".ipynb")]:
        files.remove(file)
        text = notebook_page(json.loads(Path(str(file.abs_src_path)).read_text(encoding="utf-8")))
        files.append(File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=text))
    waiting = [f.src_uri for f in files.documentation_pages()]
    while waiting:
        uri = waiting.pop()
        for target in outside_links(files.src_uris[uri].content_string, uri):
            new = site_uri(target)
            if new not in files.src_uris:
                files.append(outside_file(target, config))
                waiting += [new] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Every link as it leads inside the site."""
    return _LINK.sub(lambda found: found[1] + in_site(found[2], page.file.src_uri) + (found[3] or "") + found[4], markdown)


def origin(uri: str) -> Path:
    """The folder in the repository that a page's links are seen from."""
    return (ROOT / uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else DOCS / uri).parent


def led_to(link: str, uri: str) -> Path | None:
    """The file that a link on a page leads to; None for an address elsewhere or a link that leads nowhere."""
    if re.match(r"[a-z]+:", link) or link.startswith("/"):
        return None
    target = Path(os.path.normpath(origin(uri) / link))
    return target if target.is_relative_to(ROOT) and target.is_file() else None


def outside_links(markdown: str, uri: str) -> Iterator[Path]:
    """The files outside docs/ that a page links to."""
    for found in _LINK.finditer(markdown):
        target = led_to(found[2], uri)
        if target is not None and not target.is_relative_to(DOCS):
            yield target


def site_uri(target: Path) -> str:
    """Where a file of the repository lies in the site.

    >>> site_uri(DOCS / "tutorial.ipynb"), site_uri(ROOT / "CHANGELOG.md"), site_uri(ROOT / "experiments/demo.toml")
    ('tutorial.md', 'repository/CHANGELOG.md', 'repository/experiments/demo.toml.md')
    """
    if target.is_relative_to(DOCS):
        uri = target.relative_to(DOCS).as_posix()
        return uri.removesuffix(".ipynb") + ".md" if target.suffix == ".ipynb" else uri
    return f"{OUTSIDE}/{target.relative_to(ROOT).as_posix()}" + (".md" if target.suffix in SHOWN_AS else "")


def in_site(link: str, uri: str) -> str:
    """A link of a page as it is inside the site. What leads nowhere stays, so that mkdocs warns of it."""
    target = led_to(link, uri)
    return link if target is None else os.path.relpath(site_uri(target), Path(uri).parent)


def outside_file(target: Path, config: MkDocsConfig) -> File:
    """A file from outside docs/: Markdown as it is, text in a box, anything else to fetch."""
    if target.suffix not in SHOWN_AS:
        return File.generated(config, site_uri(target), abs_src_path=str(target))
    box = fenced(target.read_text(encoding="utf-8"), SHOWN_AS[target.suffix])
    return File.generated(config, site_uri(target), content=f"# {target.name}\n\n`{target.relative_to(ROOT).as_posix()}`\n\n{box}")


def notebook_page(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown, with the outputs that are stored in it."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell)) + "\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = _text(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif source.strip():
        yield fenced(source, "python")
        yield from (shown for output in cell.get("outputs", ()) if (shown := _output(output)))


def _output(output: dict[str, Any]) -> str:
    """The richest form of an output that a page can show."""
    if output["output_type"] == "stream":
        return fenced(_text(output["text"]), "text") if output["name"] == "stdout" else ""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="{_alt(data)}" src="data:image/png;base64,{"".join(_text(data["image/png"]).split())}">'
    if "image/svg+xml" in data:
        return f'<div class="output">{_text(data["image/svg+xml"])}</div>'
    if "text/html" in data:
        return f'<div class="output">{_text(data["text/html"])}</div>'
    return fenced(_text(data["text/plain"]), "text") if "text/plain" in data else ""


def _alt(data: dict[str, Any]) -> str:
    return html.escape(_text(data.get("text/plain", "a picture")).strip(), quote=True)


def _text(source: str | list[str]) -> str:
    return _ESCAPES.sub("", source if isinstance(source, str) else "".join(source))


def fenced(text: str, language: str) -> str:
    """Text in a box that it cannot close itself."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
