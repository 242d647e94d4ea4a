"""The house: rooms that import each other in one direction only, files that fit on a screen or a few, no two things with one name."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import unseen

ROOT = Path(unseen.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {".".join(file.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}
STARTS_AT_ONCE = ("cli", "__init__")  # commands import what they need when they run, so that help comes at once


ROWS = (  # of docs/pictures/rooms.svg, from the top
    {"__main__", "advice", "cli", "bench", "front", "deploy", "figures", "leakage", "speed", "tuning"},
    {"training", "report"},
    {"engines", "federation"},
    {"experiment", "experiment_options", "world", "scoring", "runs"},
    {"methods", "parts", "method", "client", "payload", "optimizers"},
    {
        "networks",
        "data",
        "device",
        "ops",
        "settings",
        "state",
        "codec",
        "task",
        "metrics",
        "randomness",
        "errors",
        "files",
        "machine",
        "version",
        "own_code",
    },
)


@functools.cache
def imports(file: Path, inside_functions: bool = True) -> frozenset[str]:
    """The modules of this package that a file imports."""
    tree, found = ast.parse(file.read_text()), set()
    inner = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if (
            not isinstance(node, ast.ImportFrom)
            or not (node.module or "").startswith("unseen")
            or (id(node) in inner and not inside_functions)
        ):
            continue
        for alias in node.names:
            deeper = f"{node.module}.{alias.name}"
            found.add(deeper if deeper in MODULES else str(node.module))
    return frozenset(found)


def room(module: str) -> str:
    """The folder below the package, or the file itself."""
    return module.split(".")[1] if "." in module else module


def refuse_cycles(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        raise AssertionError(" -> ".join(reversed(cycle.args[1]))) from None


def test_no_room_imports_back() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, file in MODULES.items():
        if module != "unseen":  # the front door opens on everything
            graph[room(module)] |= {room(other) for other in imports(file) if other != "unseen"} - {room(module)}
    refuse_cycles(graph)


def test_rooms_lie_as_the_picture_has_them() -> None:
    level = {name: number for number, row in enumerate(ROWS) for name in row}
    up = {
        (module, other)
        for module, file in MODULES.items()
        for other in imports(file)
        if "unseen" not in (module, other) and level[room(other)] < level[room(module)]
    }
    allowed = {("unseen.experiment_options", "unseen.method")} & up  # for types alone
    assert up - allowed == set()
    drawn = (ROOT.parents[1] / "docs/pictures/rooms.svg").read_text()
    assert [
        name for row in ROWS[:5] for name in row if name in ("cli", "bench", "runs", "engines", "parts") and f">{name}/<" not in drawn
    ] == []


def test_within_rooms_no_file_imports_back_either() -> None:
    refuse_cycles({module: set(imports(file)) - {module} for module, file in MODULES.items() if module != "unseen"})


def test_rooms_within_rooms_too() -> None:
    """federation: server, site and flower; data: sets, reading, partition and checks."""
    for name in ("federation", "data"):
        graph: dict[str, set[str]] = defaultdict(set)
        for module, file in MODULES.items():
            parts = module.split(".")
            if parts[1:2] == [name] and len(parts) > 2:
                others = (other.split(".") for other in imports(file))
                graph[parts[2]] |= {o[2] for o in others if o[1:2] == [name] and len(o) > 2} - {parts[2]}
        refuse_cycles(graph)


def test_a_function_imports_only_what_is_slow_or_optional() -> None:
    """Never because of a cycle: the same import at the top of the file would close none."""
    top = {module: set(imports(file, inside_functions=False)) for module, file in MODULES.items()}
    for module, file in MODULES.items():
        if room(module) in STARTS_AT_ONCE or module == "unseen":
            continue
        for other in set(imports(file)) - top[module]:
            refuse_cycles({**top, module: top[module] | {other}})


def test_no_file_is_longer_than_four_hundred_lines_and_no_method_longer_than_two() -> None:
    assert {f.name: n for f in FILES if (n := len(f.read_text().splitlines())) > 400} == {}
    assert {f.name: n for f in FILES if f.parent.name == "methods" and (n := len(f.read_text().splitlines())) >= 200} == {}


def test_no_two_things_have_one_name() -> None:
    """Public classes over the whole package."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module, file in MODULES.items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    own = {"Down", "Up", "Kept", "Server"}  # what travels and what is kept, method by method
    assert {name: modules for name, modules in homes.items() if len(modules) > 1 and name not in own} == {}
