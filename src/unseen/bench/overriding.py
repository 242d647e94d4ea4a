"""A benchmark's file with what the command line says in its place: to try a paper's table small, without a copy of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unseen.errors import BadInput, nearest
from unseen.methods import METHODS, method_class
from unseen.own_code import names_code
from unseen.settings import settings_of

__all__ = ["overridden"]


def overridden(
    values: Mapping[str, Any], given: Mapping[str, Any], targets: list[str] | str | None, fields: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The file's values with these keys, unseen domains and fields of methods; and what must be said about them.

    A field goes to every row whose method has it, and wins over all that the file says; `METHOD.FIELD` to the rows of that method. A row
    that lacks the field keeps its own settings, which is said.
    """
    ready = {key.replace("-", "_"): value for key, value in values.items()} | dict(given)
    if targets is not None:
        ready["targets"] = targets
        ready.pop("target", None)
    rows = ready.get("methods", [ready["method"]] if "method" in ready else [])
    if not isinstance(rows, list):
        return ready, []  # whoever reads the benchmark says so
    tables = [{"method": row} if isinstance(row, str) else dict(row) if isinstance(row, Mapping) else row for row in rows]
    notes: list[str] = []
    for name, value in fields.items():
        notes += _into_rows([row for row in tables if isinstance(row, dict)], name, value)
    if given:  # a row's own word would win otherwise
        tables = [{k: v for k, v in row.items() if k not in given} if isinstance(row, dict) else row for row in tables]
    return {**ready, "methods": tables}, notes


def _into_rows(rows: list[dict[str, Any]], name: str, value: Any) -> list[str]:
    method, dot, field = name.rpartition(".")
    wanted = [row for row in rows if not dot or row.get("method") == method]
    if dot and not wanted:
        there = {str(row.get("method")) for row in rows}
        raise BadInput(f"--set {name}: no row of the file is of {method!r}{nearest(method, there)}")
    without = []
    for row in wanted:
        known = _fields(row.get("method"))
        if known is not None and field not in known:
            without.append(row)
            continue
        own = row.get("set", {})
        row["set"] = {**(own if isinstance(own, Mapping) else {}), field: value}
        by_target = row.get("by_target", {})
        row["by_target"] = {t: {k: v for k, v in told.items() if k != field} for t, told in by_target.items() if isinstance(told, Mapping)}
    if len(without) == len(wanted):
        every = {one for row in wanted for one in _fields(row.get("method")) or ()}
        raise BadInput(f"--set {name}: no method of the file has the field {field!r}{nearest(field, every)}")
    if without:
        names = ", ".join(dict.fromkeys(str(row.get("label") or row["method"]) for row in without))
        return [f"--set {name}: {names} has no such field and keeps its own settings"]
    return []


def _fields(method: Any) -> set[str] | None:
    """The fields of a method; None where the name is not known, which is said elsewhere."""
    if not isinstance(method, str) or (method not in METHODS and not names_code(method)):
        return None
    return {setting.name for setting in settings_of(method_class(method))}
