"""Every numbered invariant is defined once, and a test is known to fail when it is broken (style R8).

A number in the docstring of a test proves nothing. tests/meta/mutations.toml names for each invariant a
change that breaks it and the test that then fails; `python -m tools.mutate` makes the changes and runs the
tests, which takes minutes. Here it is only checked that the table is complete and can be carried out.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tools.mutate import Mutation, read_exemptions, read_mutations

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\[([A-Z]{2,6}-\d+)\]")
DEFINED = re.findall(r"^- \[([A-Z]{2,6}-\d+)\]", (ROOT / "docs/invariants.md").read_text(), re.MULTILINE)
MUTATIONS = read_mutations()
EXEMPTIONS = read_exemptions()


def mentioned(folder: str) -> set[str]:
    return {
        number
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".txt"}
        for number in NUMBER.findall(path.read_text())
    }


@cache
def names_in(path: Path) -> set[str]:
    """Return the names that a test file defines: functions, classes, and what it assigns."""
    nodes = ast.parse(path.read_text()).body
    assigned = {
        t.id for n in nodes if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
    }
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return assigned | {node.name for node in nodes if isinstance(node, defined)}


def test_every_invariant_is_defined_once_and_kept_somewhere_in_the_code() -> None:
    assert len(DEFINED) == len(set(DEFINED)), "a number is defined once"
    assert set(DEFINED) == mentioned("src"), "defined but not in the code, or in the code but not defined"
    assert mentioned("tests") <= set(DEFINED), "in a test but not defined"


def test_every_invariant_has_a_mutation_or_a_reason_to_have_none() -> None:
    mutated = [mutation.invariant for mutation in MUTATIONS]
    assert len(mutated) == len(set(mutated)), "one mutation shows it"
    assert not set(mutated) & EXEMPTIONS.keys(), "it has a mutation: take it off the exemptions"
    assert set(mutated) | EXEMPTIONS.keys() == set(DEFINED)


@pytest.mark.gate(30)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.invariant)
def test_every_mutation_can_be_made_and_its_test_exists(mutation: Mutation) -> None:
    text = (ROOT / mutation.path).read_text()
    changed = mutation.apply_to(text)
    assert changed != text
    ast.parse(changed)
    file, _, name = mutation.test.partition("::")
    assert name in names_in(ROOT / file)


def test_a_mutation_whose_text_is_not_there_once_is_refused() -> None:
    mutation = Mutation(invariant="X-1", file="x.py", old="a", new="b", test="tests/x.py::test_x")
    assert mutation.apply_to("cat") == "cbt"
    for text in ("dog", "banana"):
        with pytest.raises(ValueError, match="not once"):
            mutation.apply_to(text)
