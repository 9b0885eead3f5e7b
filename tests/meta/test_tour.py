"""The tour in CONTRIBUTING.md leads to places that exist."""

import importlib
import re
from functools import reduce
from pathlib import Path

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
STOP = re.compile(r"`(?P<name>[A-Za-z_][\w.]*)`\s+in\s+`(?P<module>tallystick\.[\w.]+)`")


def test_every_stop_is_where_the_tour_says() -> None:
    stops = [(stop["module"], stop["name"]) for stop in STOP.finditer(CONTRIBUTING)]
    assert len(stops) >= 18
    for module, name in stops:
        reduce(getattr, name.split("."), importlib.import_module(module))
