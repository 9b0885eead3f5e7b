"""Style R7 and R8 as tests: sizes, banned words and comments that say nothing."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TOOLS = sorted((ROOT / "tools").rglob("*.py"))

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 700
NESTING_MAX = 4
PARAMETERS_MAX = 5

# A ratchet: what is listed may only shrink. New code must fit.
LONG_FUNCTIONS: dict[str, int] = {}
MANY_PARAMETERS = {
    "src/tallystick/storage/log_loader.py:open_log",
    "src/tallystick/storage/validation.py:_refusal",
}


@dataclass(frozen=True)
class Function:
    name: str
    lines: int
    parameters: int


@dataclass(frozen=True)
class Module:
    """What is looked at in a file. Its tree is not kept: the collector would walk it time and again."""

    docstring: str | None
    functions: tuple[Function, ...]


@cache
def read(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return Module(ast.get_docstring(tree), tuple(measured(path, node) for node in functions))


def measured(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        doc = node.body[0]
        lines -= (doc.end_lineno or doc.lineno) - doc.lineno + 1
    positional = [a for a in node.args.posonlyargs + node.args.args if a.arg not in {"self", "cls"}]
    return Function(f"{path.relative_to(ROOT)}:{node.name}", lines, len(positional))


def test_functions_fit_on_a_page() -> None:
    long = {made.name: made.lines for path in SOURCES + TOOLS for made in read(path).functions}
    grown = {n: size for n, size in long.items() if size > LONG_FUNCTIONS.get(n, FUNCTION_LINES_MAX)}
    assert not grown
    settled = {n for n in LONG_FUNCTIONS if long.get(n, 0) <= FUNCTION_LINES_MAX}
    assert not settled, "these fit now: take them off the list"


def test_functions_take_few_parameters() -> None:
    """Beyond five, make one frozen value; keyword-only parameters name themselves and do not count."""
    made = [function for path in SOURCES for function in read(path).functions]
    assert {function.name for function in made if function.parameters > PARAMETERS_MAX} == MANY_PARAMETERS


def test_modules_are_short() -> None:
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in SOURCES + TESTS + TOOLS}
    assert not {name: count for name, count in lines.items() if count > MODULE_LINES_MAX}


def test_modules_say_what_they_are() -> None:
    silent = [str(p.relative_to(ROOT)) for p in SOURCES if not read(p).docstring]
    assert not silent


def test_no_module_has_a_name_that_means_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "handler2"}
    assert not [str(p) for p in SOURCES if p.stem in empty]


def test_no_notes_to_self() -> None:
    """A thing left undone has an entry in docs/skipped.md, not a mark in the code."""
    mark = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert not [str(p) for p in SOURCES + TOOLS if mark.search(p.read_text())]


def test_tests_do_not_sleep() -> None:
    """Style R16: a test waits through `testing.eventually` alone. Sleeping 0 only lets the loop turn."""
    sleeping = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in TESTS
        if ".sleep" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep"
        if not (isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]
    assert not sleeping


CLOCKS = {"monotonic", "perf_counter", "process_time", "time", "monotonic_ms", "now_ms"}


def test_no_test_says_how_long_something_may_take() -> None:
    """A busy machine is no defect: count work, or give the limit and look at what happened."""
    timed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare) and _bounds_elapsed_time(node)
    ]
    assert not timed


def _bounds_elapsed_time(node: ast.Compare) -> bool:
    """Is something less than a limit that was read from a clock, less when it began?"""
    sides = [node.left, *node.comparators]
    pairs = zip(sides, node.ops, sides[1:], strict=False)
    return any(
        (isinstance(op, (ast.Lt, ast.LtE)) and _is_elapsed(left))
        or (isinstance(op, (ast.Gt, ast.GtE)) and _is_elapsed(right))
        for left, op, right in pairs
    )


def _is_elapsed(node: ast.expr) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Call)):
        return False
    function = node.left.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in CLOCKS


def test_what_the_gate_leaves_out_is_there() -> None:
    """A path that is not there would be left out in silence, and the test behind its new name be run."""
    (listed,) = re.findall(
        r"^LEFT_TO_FULL := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    paths = listed.replace("\\", " ").split()
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]
