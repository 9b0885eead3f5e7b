"""Each extra brings all that it is for, and nothing that lies about in an environment is missed elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools.smoke import EXTRAS

ROOT = Path(__file__).parents[3]
HIDE = """
from tests.support.installed_only import hide_others
hide_others({extras})
"""
LOAD_ALL = """
from importlib import import_module
for name in {names!r}:
    module, _, attribute = name.partition(":")
    getattr(import_module(module), attribute or "__name__")
"""
LOAD_NONE = """
from importlib import import_module
from tallystick import _lazy
for extra, names in {names!r}.items():
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            getattr(import_module(module), attribute) if attribute else _lazy.load(module)
        except _lazy.MissingLibrary as exc:
            assert str(exc).endswith(f"[{{extra}}]'"), f"{{name}}: {{exc}}"
        else:
            raise SystemExit(f"{{name}} needs nothing of its extra {{extra}}")
"""

pytestmark = pytest.mark.slow


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_is_enough_for_what_it_is_for(extra: str) -> None:
    run(HIDE.format(extras=repr(extra)) + LOAD_ALL.format(names=EXTRAS[extra]))


def test_without_extras_each_name_says_which_one_it_needs() -> None:
    run(HIDE.format(extras="") + LOAD_NONE.format(names=EXTRAS))


def test_the_broker_and_its_clients_need_no_extra() -> None:
    names = ("tallystick:Producer", "tallystick:Consumer", "tallystick:Admin", "tallystick.cli.main:main")
    run(HIDE.format(extras="") + LOAD_ALL.format(names=(*names, "tallystick.testing:EmbeddedBroker")))
