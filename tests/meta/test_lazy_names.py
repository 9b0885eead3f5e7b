"""Names that a package loads on first use are those that a type checker sees."""

import ast
import importlib
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"


def lazy_names() -> list[tuple[str, str, str, str]]:
    """Return package, public name, module and attribute of each import that only type checkers read."""
    places = []
    for path in sorted(SRC.rglob("__init__.py")):
        if "_lazy.attributes(" not in (text := path.read_text()):
            continue
        package = ".".join(path.parent.relative_to(SRC).parts)
        for block in ast.parse(text).body:
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
                places += [
                    (package, alias.asname or alias.name, statement.module or "", alias.name)
                    for statement in block.body
                    if isinstance(statement, ast.ImportFrom)
                    for alias in statement.names
                ]
    return places


@pytest.mark.parametrize(("package", "name", "module", "attribute"), lazy_names())
@pytest.mark.slow
def test_a_lazy_name_is_the_one_that_type_checkers_see(
    package: str, name: str, module: str, attribute: str
) -> None:
    loaded = getattr(importlib.import_module(package), name)
    try:
        expected = getattr(importlib.import_module(module), attribute)
    except AttributeError:  # `from package import module`
        expected = importlib.import_module(f"{module}.{attribute}")
    assert loaded is expected


def test_every_package_with_lazy_names_is_looked_at() -> None:
    assert {"tallystick", "tallystick.admin", "tallystick.dualwrite", "tallystick.spark"} <= {
        package for package, *_ in lazy_names()
    }
