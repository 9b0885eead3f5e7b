"""Alert rules and dashboard: they name what is exported, and every alert has a runbook."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from tests.support.console_facts import make_prefix, make_store
from tests.support.monitoring import (
    FOLDER,
    ROOT,
    RULE_FILES,
    RULE_TESTS,
    Exported,
    Expression,
    list_alerts,
    list_expressions,
    list_families,
    list_panels,
)
from tests.unit.console.test_web import make_client, make_feed, make_full_snapshot
from tests.unit.spark.test_spark_query_events import BATCH, REPLAY
from tools import dashboard

from tallystick.broker.txn.machine.model import ForcedCause
from tallystick.console.views import metrics
from tallystick.dualwrite.block.steps import StepRunner
from tallystick.kernel.value import replace
from tallystick.metrics import ClientMetrics
from tallystick.metrics.dual_writes import WriteEvent
from tallystick.metrics.exposition import PrometheusText
from tallystick.metrics.families import applications, broker, console
from tallystick.metrics.model import MetricFamily, Sample
from tallystick.spark import QueryMetrics, query_metrics

NAMED_OTHERWISE = {
    "tallystick_decided_transaction_time_max_ms",
    "tallystick_in_doubt_transaction_open_time_max_ms",
    "tallystick_tls_certificate_days_left",
}
"""promtool would name these otherwise: KIP-939 has this unit, and certificates are renewed by the day."""

CAUSES = [(cause.name.lower(),) for cause in ForcedCause]


def expose(collector: object) -> str:
    registry = CollectorRegistry()
    registry.register(collector)  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def expose_console() -> str:
    """Return the page of a console that has read everything, and a group with members."""
    snapshot = make_full_snapshot()
    store = make_store(read_ms=snapshot.at_ms - 100)
    return make_client(make_feed(replace(snapshot, stores=(store, *snapshot.stores)))).get("/metrics").text


class FakePool:
    """A pool that shows everything that one can show."""

    def metrics(self) -> dict[str, float]:
        names = ("writers", "writers-in-doubt", "writers-unsettled", "pool-free")
        return dict.fromkeys((*names, "pool-leases"), 1)


def expose_clients() -> str:
    collector, pool = ClientMetrics(), FakePool()
    steps = StepRunner(collector.watch_writes("shop"))
    steps.attach(pool)
    for event in WriteEvent:
        steps.emit(event)
    return expose(collector)


def expose_queries() -> str:
    queries = QueryMetrics()
    queries.read_decisions("flights", "pipeline.flights", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_metrics, "read_last_decision", lambda *_, **__: make_prefix().decision)
        for progress in (BATCH, REPLAY):
            event = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress)))
            queries.onQueryProgress(event)  # type: ignore[arg-type]
    for exception in (None, "boom"):
        ended = SimpleNamespace(id=BATCH["id"], runId=BATCH["runId"], exception=exception)
        queries.onQueryTerminated(ended)  # type: ignore[arg-type]
    return expose(queries)


def expose_broker() -> str:
    """Return the broker's families with a sample each; tests/integration compares them with a live broker."""

    def make_samples(family: MetricFamily) -> list[Sample]:
        return [(cause, 1.0) for cause in CAUSES] if family.labels == ("cause",) else [(family.labels, 1.0)]

    return PrometheusText().format([(each, make_samples(each)) for each in list_families(broker)]).decode()


@pytest.fixture(scope="module")
def exported() -> Exported:
    exported = Exported()
    for exposition in (expose_console(), expose_clients(), expose_queries(), expose_broker()):
        exported.read(exposition)
    return exported


def test_every_metric_label_and_value_is_one_that_is_exported(exported: Exported) -> None:
    problems = [each for expression in list_expressions() for each in exported.find_problems(expression)]
    assert problems == []


def test_the_facts_show_every_metric(exported: Exported) -> None:
    """Otherwise the labels of some would be held against nothing."""
    assert {name for name in exported.without_samples if "_created" not in name} == set()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sum(tallystick_cluster_transaction)", "is not exported"),
        ('tallystick_cluster_transactions{word="broken"}', "has no label word"),
        ('tallystick_cluster_transactions{health="looking again"}', "is never ['looking again']"),
        ('tallystick_cluster_transactions{health=~"broken|lost"}', "is never ['lost']"),
        ("sum by (topic) (tallystick_cluster_transactions)", "has the label topic"),
        ("sum by (le, step) (tallystick_dual_write_step_seconds_bukket)", "is not exported"),
    ],
)
def test_a_name_that_is_not_exported_is_noticed(exported: Exported, text: str, problem: str) -> None:
    problems = list(exported.find_problems(Expression("here", text, frozenset())))
    assert any(problem in each for each in problems), problems


def format_row(family: MetricFamily) -> str:
    mbean = f" <br>`{family.mbean}`" if family.mbean else ""
    return f"| `{family.name}`{mbean} | {family.type} | {', '.join(family.labels)} | {family.help} |"


@pytest.mark.parametrize(
    ("page", "tables"), [("metrics.md", (console, applications)), ("broker-metrics.md", (broker,))]
)
def test_the_reference_has_the_table(page: str, tables: tuple[ModuleType, ...]) -> None:
    lines = (ROOT / "docs/reference" / page).read_text().splitlines()
    rows = [line for line in lines if re.match(r"\| `.*` \| (gauge|counter|histogram) \|", line)]
    families = [each for table in tables for each in list_families(table)]
    assert sorted(rows) == sorted(map(format_row, families))


def test_the_table_has_each_name_once_and_all_that_is_exported(exported: Exported) -> None:
    families = [each for table in (broker, console, applications) for each in list_families(table)]
    names = [each.name for each in families]
    assert len(set(names)) == len(names)
    suffix = re.compile(r"_(bucket|sum|count|created)$")
    # A counter's time of creation has the counter's name without `_total`.
    shown = {name: {name, suffix.sub("", name), suffix.sub("_total", name)} for name in exported.labels}
    assert [name for name, possible in shown.items() if not possible & set(names)] == []


def test_the_guide_includes_its_example_and_names_the_bounds() -> None:
    guide = (ROOT / "docs/how-to/monitor.md").read_text()
    assert '--8<-- "examples/client_metrics.py"' in guide
    rows = {
        "partitions that hold readers back": metrics.HELD_BACK_PARTITIONS_MAX,
        "groups": metrics.GROUPS_MAX,
        "partitions of groups": metrics.GROUP_PARTITIONS_MAX,
        "prefixes of Spark": metrics.PREFIXES_MAX,
    }
    assert [kind for kind, limit in rows.items() if f"| {kind} | {limit:,} |" not in guide] == []


def test_every_expression_names_a_metric() -> None:
    assert [each.where for each in list_expressions() if not each.selectors] == []


# ------------------------------------------------------------------------------------ runbooks


def read_headings(path: Path) -> dict[str, str]:
    """Return the sections of a page by the anchors that the site gives them."""
    parts = re.split(r"^## (.+)$", path.read_text(), flags=re.MULTILINE)
    return {
        title.lower().replace(" ", "-"): body for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def find_section(alert: Mapping[str, Any]) -> tuple[str, str]:
    """Return the page in the repository, and the section, that an alert links to."""
    page, _, anchor = alert["annotations"]["runbook_url"].removeprefix(dashboard.read_site()).partition("/#")
    return f"docs/{page}.md", anchor


def test_runbooks_are_pages_of_the_published_site_or_of_an_operators_own() -> None:
    """ "alerts with `runbook_url`": absolute, from `site_url` alone."""
    for path in RULE_FILES:
        rules = path.read_text()
        assert dashboard.link_runbooks(rules, dashboard.read_site()) == rules, (
            "run: python -m tools.dashboard"
        )
        own = dashboard.link_runbooks(rules, "https://docs.corp/tallystick")
        urls = re.findall("runbook_url: (.+)", own)
        assert len(urls) == rules.count("- alert: ")
        assert [url for url in urls if not url.startswith("https://docs.corp/tallystick/runbooks/")] == []
        assert dashboard.link_runbooks(own, dashboard.read_site()) == rules


ANSWERS = ("means", "data", "look at", "do", "done when")


def test_every_alert_has_a_runbook_that_says_everything() -> None:
    problems = []
    for alert in list_alerts():
        page, anchor = find_section(alert)
        sections = read_headings(ROOT / page) if (ROOT / page).exists() else {}
        if anchor not in sections:
            problems.append(f"{alert['alert']}: no section {anchor} in {page}")
            continue
        rows = dict(re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", sections[anchor], re.MULTILINE))
        problems += [f"{alert['alert']}: nothing on {each!r}" for each in ANSWERS if not rows.get(each)]
    assert problems == []


def test_every_section_of_a_runbook_is_of_an_alert() -> None:
    wanted = {find_section(each) for each in list_alerts()}
    sections = {
        (f"docs/runbooks/{path.name}", anchor)
        for path in (ROOT / "docs/runbooks").glob("*.md")
        for anchor in read_headings(path)
    }
    assert sections == wanted


def test_alerts_have_unique_names_a_severity_and_texts() -> None:
    names = [each["alert"] for each in list_alerts()]
    assert len(set(names)) == len(names)
    for alert in list_alerts():
        assert alert["labels"]["severity"] in ("warning", "critical"), alert["alert"]
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}, alert["alert"]


# ---------------------------------------------------------------------- files, and Prometheus itself


def test_the_dashboard_is_what_its_table_says() -> None:
    assert dashboard.TARGET.read_text() == dashboard.build(), "run: python -m tools.dashboard"


def test_panels_do_not_overlap_and_fit() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in list_panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= dashboard.COLUMNS
        taken |= cells


def test_every_alert_has_a_test() -> None:
    text = RULE_TESTS.read_text()
    assert [each["alert"] for each in list_alerts() if f'alertname="{each["alert"]}"' not in text] == []
    assert yaml.safe_load(text)["rule_files"] == [
        "console.rules.yml",
        "broker.rules.yml",
        "clients.rules.yml",
    ]


@pytest.fixture(scope="module")
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    return path


def run_promtool(promtool: str, arguments: Iterable[object]) -> None:
    done = subprocess.run(
        [promtool, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_rules_and_configuration(promtool: str) -> None:
    run_promtool(promtool, ["check", "rules", *RULE_FILES])
    run_promtool(promtool, ["check", "config", FOLDER / "prometheus.yml"])


@pytest.mark.parametrize("expose_one", [expose_console, expose_broker], ids=["console", "broker"])
def test_prometheus_reads_what_is_exported(promtool: str, expose_one: Callable[[], str]) -> None:
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=expose_one(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr  # 3: it reads all, and would name some otherwise
    names = {line.partition(" ")[0] for line in done.stderr.splitlines() if line}
    assert {name for name in names if not name.startswith("kafka_")} <= NAMED_OTHERWISE


def test_the_rules_fire_when_they_should(promtool: str) -> None:
    run_promtool(promtool, ["test", "rules", RULE_TESTS])


def test_prometheus_accepts_the_queries_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    queries = [target["expr"] for panel in list_panels() for target in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(queries)
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    run_promtool(promtool, ["check", "rules", path])


@pytest.mark.parametrize("expose", [expose_console, expose_clients, expose_queries, expose_broker])
def test_prometheus_accepts_what_is_exported(promtool: str, expose: object) -> None:
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=expose(),  # type: ignore[operator]
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "error while linting" not in done.stdout + done.stderr
    assert done.returncode in (0, 3), done.stderr  # 3: advice on names, such as milliseconds in Kafka's
