"""`unseen methods`, `unseen networks`: what there is."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.text import Text

from unseen.cli.answers import answering, screen
from unseen.cli.tables import plain_table, show_list

__all__ = ["methods", "networks"]

_JSON = Annotated[bool, typer.Option("--json", help="for programs")]


def methods(
    name: Annotated[str | None, typer.Argument(help="show this method's card", show_default=False)] = None, as_json: _JSON = False
) -> None:
    """List the methods, or show one method's card: idea, citation, fields, what travels.

    Example: unseen methods fedsb
    """
    with answering():
        from unseen.methods import METHODS, method_class

        if name is not None:
            card = _card(name, method_class(name))
            typer.echo(json.dumps(card, indent=1)) if as_json else _show_card(card)
            return
        cards = [_card(n, cls) for n, cls in METHODS.items()]
        if as_json:
            typer.echo(json.dumps(cards, indent=1))
            return
        table = plain_table("name", "idea and paper")
        for card in cards:
            table.add_row(Text(card["name"], "bold"), Text.assemble(card["idea"], " ", (card["paper"], "dim")))
        show_list(table)
        screen.print("\nparts, as in --set aggregation=sha or --set sam=sam:rho=0.1")
        parts = plain_table("field", "parts", "methods that take it")
        for field, names, who in _by_part({card["name"]: card["parts"] for card in cards}):
            parts.add_row(Text(field, "bold"), ", ".join(names), who)
        show_list(parts)
        screen.print("\nunseen methods NAME shows a method's fields, and what travels")


def _by_part(methods: dict[str, dict[str, list[str]]]) -> list[tuple[str, list[str], str]]:
    """Every field that takes parts: its name, what it takes, and which methods have it.

    >>> _by_part({"a": {"sam": ["sam"]}, "b": {"sam": ["sam"]}, "c": {}})
    [('sam', ['sam'], 'all but c')]
    """
    fields = {field: names for parts in methods.values() for field, names in parts.items()}
    rows = []
    for field, names in fields.items():
        have = [name for name, parts in methods.items() if field in parts]
        lack = [name for name in methods if name not in have]
        who = "all" if not lack else f"all but {', '.join(lack)}" if len(lack) < len(have) else ", ".join(have)
        rows.append((field, names, who))
    return rows


def _card(name: str, cls: Any) -> dict[str, Any]:
    from unseen.parts import parts_of
    from unseen.settings import settings_of

    doc = (cls.__doc__ or "").strip().splitlines()
    return {
        "name": name,
        "title": cls.title or cls.__name__,
        "paper": cls.paper,
        "idea": doc[0] if doc else "",
        "tasks": list(cls.tasks),
        "presets": {preset: dict(values) for preset, values in cls.presets.items()},
        "variants": {variant: dict(values) for variant, values in cls.variants.items()},
        "fields": [
            {"name": s.name, "default": _plain(s.default), "expected": s.expected(), "meaning": s.meaning, "symbol": s.symbol}
            for s in settings_of(cls)
        ],
        "parts": parts_of(cls),
        "travels": _travels(cls),
    }


def _plain(value: Any) -> Any:
    from unseen.settings import Configured, part

    return part(value) if isinstance(value, Configured) else value


def _as_set(value: Any) -> str:
    """A field's value as `--set` takes it.

    >>> _as_set(None), _as_set(True), _as_set({"name": "randconv", "copies": 1})
    ('none', 'true', 'randconv:copies=1')
    """
    from unseen.own_code import options_text

    if isinstance(value, dict):
        return str(value["name"]) + options_text({key: _as_set(part) for key, part in value.items() if key != "name"})
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _travels(cls: Any) -> list[dict[str, Any]]:
    """Every client task of the method and of the parts it has unless told otherwise: what goes to a client, and what leaves it."""
    from unseen.settings import Configured, settings_of

    owners = {"": cls} | {f"{s.name}.": type(s.default) for s in settings_of(cls) if isinstance(s.default, Configured)}
    return [row for prefix, owner in owners.items() for row in _travels_of(prefix, owner)]


def _travels_of(prefix: str, owner: Any) -> list[dict[str, Any]]:
    import dataclasses
    import typing

    from unseen.payload import declarations

    rows = []
    for task in (getattr(owner, name) for name in dir(owner)):
        down, up = getattr(task, "__payloads__", (None, None))
        for direction, payload in (("received", down), ("sent", up)):
            for name, told in declarations(payload).items() if payload else ():
                where = {"task": prefix + task.__name__, "direction": direction, "field": name}
                rows.append({**where, "type": _type_name(typing.get_type_hints(payload)[name]), **dataclasses.asdict(told)})
    return rows


def _in_words(row: dict[str, Any]) -> str:
    """What a field declares.

    >>> _in_words({"kind": "model", "role": "task", "part": "head", "of": "model", "grows": False, "type": "State | None"})
    'model, head of the task network, from model; only where it is needed'
    """
    from unseen.payload import OF_A_NETWORK

    part = f"{row['part']} of the {row['role']} network" if row["part"] != "whole" else f"of the {row['role']} network"
    words = f"{row['kind']}, {part}" if row["kind"] in OF_A_NETWORK else str(row["kind"])
    words += f", from {row['of']}" if row["of"] else ""
    return words + (", grows with the data" if row["grows"] else "") + ("; only where it is needed" if "None" in row["type"] else "")


def _type_name(hint: Any) -> str:
    text = str(hint).replace("torch.Tensor", "Tensor").replace("dict[str, Tensor]", "State")
    return text if not isinstance(hint, type) or "[" in text else hint.__name__


def _show_card(card: dict[str, Any]) -> None:
    from rich.table import Table

    whole = not screen.is_terminal  # lines; in a terminal they are broken between words
    screen.print(f"[bold]{card['title']}[/]  {card['paper']}\n{card['idea']}\n", soft_wrap=whole)
    presets = f"; presets: {', '.join(card['presets'])}" if card["presets"] else ""
    screen.print(f"tasks: {', '.join(card['tasks'])}{presets}\n", soft_wrap=whole)
    of_a_paper = any(field["symbol"] for field in card["fields"])
    table = Table(box=None, pad_edge=False)
    for heading in ("field", "default", "expected", "meaning", *(("in the paper",) if of_a_paper else ())):
        table.add_column(heading, header_style="bold", overflow="fold")
    for field in card["fields"]:
        symbol = (field["symbol"] or "[dim]not in the paper[/]",) if of_a_paper else ()
        table.add_row(field["name"], str(field["default"]), field["expected"], field["meaning"], *symbol)
    screen.print(table)
    if card["variants"]:
        screen.print(Text.assemble("\n", ("variants", "bold"), f", of which `unseen tune {card['name']}` chooses one"), soft_wrap=whole)
        longest = max(map(len, card["variants"]))
        for variant, values in card["variants"].items():
            sets = ", ".join(f"{field} = {_as_set(value)}" for field, value in values.items())
            screen.print(f"  {variant:<{longest}}  {sets or 'the defaults'}", markup=False, soft_wrap=whole)
    screen.print("\n[bold]what travels[/]")
    for row in card["travels"]:
        way = "to the client " if row["direction"] == "received" else "leaves the client"
        screen.print(f"  {row['task']}: {way:<17} {row['field']} ({_in_words(row)})", markup=False, soft_wrap=whole)


def networks(as_json: _JSON = False) -> None:
    """List the networks with their parameters and floating-point operations.

    Example: unseen networks --json
    """
    with answering():
        from unseen.networks import NETWORKS
        from unseen.networks.cost import cost

        rows: list[dict[str, Any]] = []
        for name, entry in NETWORKS.items():
            found = cost(name)
            size = list(entry.usual_size)
            rows.append({"name": name, "about": entry.about, "parameters": found.parameters, "flops": found.flops, "size": size})
        if as_json:
            typer.echo(json.dumps(rows, indent=1))
            return
        table = plain_table("name", ">M parameters", ">GFLOP", ">at", "what it is")
        for row in rows:
            millions, billions = f"{row['parameters'] / 1e6:.2f}", f"{row['flops'] / 1e9:.2f}"
            table.add_row(Text(row["name"], "bold"), millions, billions, f"{row['size'][0]} px", row["about"])
        show_list(table)
        note = "for 1,000 classes; GFLOP: of one image forward, a multiply-add counts as two. Your own: FILE.py:NAME"
        screen.print(f"\n{note}", soft_wrap=not screen.is_terminal)
