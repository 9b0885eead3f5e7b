"""Style R7 and R8 as tests: sizes, banned words and comments that say nothing."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

# It parses every module, which takes four seconds of the quick loop.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# The harness is held to what the product is held to.
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "harness").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TOOLS = sorted((ROOT / "tools").rglob("*.py"))

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 700
NESTING_MAX = 4
PARAMETERS_MAX = 5
PUBLIC_METHODS_MAX = 12
COLLABORATORS_MAX = 7
MODULES_IN_A_FOLDER_MAX = 20

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)

# A ratchet: what is listed may only shrink. New code must fit.
LONG_FUNCTIONS: dict[str, int] = {}
LONG_MODULES: dict[str, int] = {}
# What a user calls, and an interface of the system underneath, have the methods of what they stand for.
FACADES = {
    "harness/memory_fs.py:MemoryFileSystem",
    "harness/sim/loop.py:VirtualLoop",
    "src/tallystick/admin/aio.py:Admin",
    "src/tallystick/admin/client.py:Admin",
    "src/tallystick/client/aio/consumer.py:Consumer",
    "src/tallystick/client/aio/producer.py:Producer",
    "src/tallystick/client/blocking/consumer.py:Consumer",
    "src/tallystick/client/blocking/producer.py:Producer",
    "src/tallystick/dualwrite/stores/django.py:DjangoStore",
    "src/tallystick/dualwrite/stores/sql.py:SqlStore",
    "src/tallystick/dualwrite/stores/sql_async.py:AsyncSqlStore",
    "src/tallystick/lake/dual_writes/store.py:LakeStore",
    "src/tallystick/storage/disk/fs.py:FileSystem",
    "src/tallystick/storage/disk/fs.py:RealFileSystem",
    "src/tallystick/testing/store_suite.py:StoreSuite",
}
MANY_METHODS = {
    "src/tallystick/broker/coordinator/runtime.py:CoordinatorRuntime": 18,
    "src/tallystick/broker/group/coordinator.py:GroupCoordinator": 15,
    "src/tallystick/broker/group/logic.py:GroupLogic": 14,
    "src/tallystick/broker/metadata/store.py:MetadataStore": 18,
    "src/tallystick/broker/partitions/data_directory.py:DataDirectory": 16,
    "src/tallystick/broker/partitions/partition.py:Partition": 14,
    "src/tallystick/broker/server/server.py:Server": 14,
    "src/tallystick/broker/txn/coordinator.py:TransactionCoordinator": 14,
    "src/tallystick/broker/txn/logic.py:TransactionLogic": 14,
    "src/tallystick/client/consumer/engine.py:ConsumerEngine": 13,
    "src/tallystick/client/consumer/fetch_state.py:SubscriptionState": 20,
    "src/tallystick/client/net/cluster.py:Cluster": 21,
    "src/tallystick/client/producer/batches/accumulator.py:RecordAccumulator": 13,
    "src/tallystick/client/producer/sequences/in_flight.py:PartitionInFlight": 13,
    "src/tallystick/console/terminal/app.py:TopApp": 16,
    "src/tallystick/storage/log_dir.py:LogDir": 15,
    "src/tallystick/storage/segments/log_segment.py:SegmentReader": 13,
    "src/tallystick/storage/state/producer_state.py:ProducerStateManager": 14,
}
MANY_COLLABORATORS = {
    "src/tallystick/broker/partitions/housekeeping.py:Housekeeping",
    "src/tallystick/dualwrite/aio/leases.py:AsyncLeaseKeeper",
    "src/tallystick/dualwrite/blocking/leases.py:LeaseKeeper",
}
# Twins of the synchronous and the asyncio API, and names that users import from two places.
SHARED_CLASS_NAMES = {
    "Admin",
    "Consumer",
    "DualWriter",
    "Producer",
    "RebalanceListener",
    "Transaction",
    "WriterPool",
}
MANY_PARAMETERS = {
    "src/tallystick/storage/log/loader.py:open_log",
    "src/tallystick/storage/state/validation.py:_reject_batch",
}


@dataclass(frozen=True)
class Function:
    name: str
    lines: int
    parameters: int
    nesting: int


@dataclass(frozen=True)
class Module:
    """What is looked at in a file. Its tree is not kept: the collector would walk it time and again."""

    docstring: str | None
    functions: tuple[Function, ...]
    classes: dict[str, int]  # and how many public methods each has
    collaborators: dict[str, int]  # how many parameters the constructor of each has


@cache
def read(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    statements = list(walk_statements(tree))
    functions = (n for n in statements if isinstance(n, FUNCTIONS))
    classes = {
        f"{path.relative_to(ROOT)}:{node.name}": node for node in statements if isinstance(node, ast.ClassDef)
    }
    public = {name: sum(map(is_public_method, node.body)) for name, node in classes.items()}
    collaborators = {name: count_collaborators(node) for name, node in classes.items()}
    return Module(
        ast.get_docstring(tree), tuple(measured(path, node) for node in functions), public, collaborators
    )


def child_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a node, and the handlers and cases that hold some: not their expressions."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        children = getattr(node, name, ())
        if isinstance(children, list):  # of a lambda or a conditional expression it is one expression
            yield from children


def walk_statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in child_statements(node):
        yield child
        yield from walk_statements(child)


def is_public_method(node: ast.stmt) -> bool:
    """Return whether it is one that others call; properties are values."""
    if not isinstance(node, FUNCTIONS) or node.name.startswith("_"):
        return False
    words = {word.id for each in node.decorator_list for word in ast.walk(each) if isinstance(word, ast.Name)}
    setter = any(isinstance(each, ast.Attribute) and each.attr == "setter" for each in node.decorator_list)
    return not setter and not words & {"property", "cached_property", "overload"}


def count_collaborators(node: ast.ClassDef) -> int:
    constructors = [each for each in node.body if isinstance(each, FUNCTIONS) and each.name == "__init__"]
    arguments = [made.args for made in constructors]
    return max((len(a.posonlyargs + a.args + a.kwonlyargs) - 1 for a in arguments), default=0)


def measured(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        doc = node.body[0]
        lines -= (doc.end_lineno or doc.lineno) - doc.lineno + 1
    positional = [a for a in node.args.posonlyargs + node.args.args if a.arg not in {"self", "cls"}]
    return Function(f"{path.relative_to(ROOT)}:{node.name}", lines, len(positional), nesting(node))


def nesting(node: ast.AST) -> int:
    """Return how deeply statements are nested in a function; `elif` does not count as a level."""
    deepest = 0
    for child in child_statements(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


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


def test_classes_have_few_public_methods() -> None:
    """A class of many methods is several classes: state, decisions, input and output."""
    count = {name: n for path in SOURCES for name, n in read(path).classes.items() if name not in FACADES}
    grown = {name: n for name, n in count.items() if n > MANY_METHODS.get(name, PUBLIC_METHODS_MAX)}
    assert not grown
    settled = {name for name in MANY_METHODS if count.get(name, 0) < MANY_METHODS[name]}
    assert not settled, "these have fewer now: correct the list"


def test_classes_have_few_collaborators() -> None:
    """A constructor of many parameters hides a value, or a class that does two things."""
    count = {name: n for path in SOURCES for name, n in read(path).collaborators.items()}
    assert {name for name, n in count.items() if n > COLLABORATORS_MAX} == MANY_COLLABORATORS


@pytest.mark.slow
def test_no_two_classes_have_one_name() -> None:
    """A reader who meets a class name knows which class it is."""
    names = Counter(
        name.rpartition(":")[2]
        for path in SOURCES
        if "protocol/messages" not in path.as_posix()
        for name in read(path).classes
    )
    assert {name for name, n in names.items() if n > 1} == SHARED_CLASS_NAMES


def test_blocks_are_not_nested_deeply() -> None:
    functions = [function for path in SOURCES + TOOLS for function in read(path).functions]
    assert not {function.name for function in functions if function.nesting > NESTING_MAX}


def test_modules_are_short() -> None:
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in SOURCES + TESTS + TOOLS}
    assert not {name: n for name, n in lines.items() if n > LONG_MODULES.get(name, MODULE_LINES_MAX)}
    settled = {name for name in LONG_MODULES if lines.get(name, 0) <= MODULE_LINES_MAX}
    assert not settled, "these fit now: take them off the list"


def test_folders_hold_few_modules() -> None:
    modules = Counter(
        path.parent.relative_to(ROOT) for path in [*SOURCES, *TOOLS] if path.name != "__init__.py"
    )
    crowded = {str(folder): n for folder, n in modules.items() if n > MODULES_IN_A_FOLDER_MAX}
    assert crowded == {}, "give some of them a sub-package with a name of its own"


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


@pytest.mark.slow
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
READS_CLOCK = re.compile(rf"\b({'|'.join(sorted(CLOCKS))})\([^()]*\)\s*-")


@pytest.mark.slow
def test_no_test_says_how_long_something_may_take() -> None:
    """A busy machine is no defect: count work, or give the limit and look at what happened."""
    timed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in TESTS
        if READS_CLOCK.search(path.read_text())
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


def test_own_modules_are_not_loaded_by_name() -> None:
    """A module name in a string hides the import from the layer contracts and its type from mypy.

    A package that loads its modules late has a typed `__getattr__` (`_lazy.attributes`, PEP 562).
    """
    by_name = re.compile(r"_lazy\.load\(\s*(?!\"(?!tallystick))")
    loading = {str(path.relative_to(ROOT)) for path in SOURCES if by_name.search(path.read_text())}
    assert loading == {
        "src/tallystick/cli/app.py",  # the table of commands
        "src/tallystick/protocol/records/native.py",  # the compiled extension, which may be missing
    }
