"""Print the size of the project: lines, code lines, files, words and import circles.

`python -m tools.house [FOLDER]`; FOLDER is another checkout. A code line has code on it: neither blank, nor a
comment, nor part of a docstring.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

_SMALL_CODE_LINES: Final = 60
_NO_CODE: Final = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main(root: Path) -> None:
    source, tests = list(_read(root / "src")), list(_read(root / "tests"))
    code_lines = [count_code_lines(text) for _, text in source]
    rows: list[tuple[str, object]] = [
        ("src: lines", _count_lines(source)),
        ("src: code lines", sum(code_lines)),
        ("src: files", len(source)),
        (f"src: files below {_SMALL_CODE_LINES} code lines", sum(n < _SMALL_CODE_LINES for n in code_lines)),
        ("src: import circles", find_circle(root / "src") or 0),
        ("tests: lines", _count_lines(tests)),
        ("tools and harness: lines", _count_lines([*_read(root / "tools"), *_read(root / "harness")])),
        ("docs: words", sum(len(path.read_text().split()) for path in (root / "docs").rglob("*.md"))),
        ("docs: decision records", len(list((root / "docs" / "adr").glob("[0-9]*.md")))),
    ]
    for name, value in rows:
        print(f"{name:<34}{value:>12,}" if isinstance(value, int) else f"{name:<34}{value:>12}")


def _read(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*.py")):
        yield path, path.read_text()


def _count_lines(files: list[tuple[Path, str]]) -> int:
    return sum(text.count("\n") for _, text in files)


def count_code_lines(text: str) -> int:
    """Return the number of lines with code on them."""
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.string:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            numbers.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(numbers)


def find_circle(source: Path) -> str:
    """Return modules that import one another, type checking included; empty if none do."""
    paths = {".".join(path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    graph = {name: _list_imports(path, modules.keys()) - {name} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        return " -> ".join(exc.args[1])
    return ""


def _list_imports(path: Path, modules: Collection[str]) -> set[str]:
    names: set[str] = set()
    tree = ast.parse(path.read_text())
    # A package names its modules for type checkers, and loads them when they are used.
    for node in tree.body if path.name == "__init__.py" else ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                names.add(submodule if submodule in modules else node.module)
    return {name for name in names if name in modules}


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
