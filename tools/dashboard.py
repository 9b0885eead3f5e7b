"""Write the Grafana dashboard from the table below, and the addresses of the alerts' runbooks.

    python -m tools.dashboard           write deploy/monitoring: grafana/tallystick.json, runbook_url
    python -m tools.dashboard ADDRESS   the same, with links to documentation that is published there
    python -m tools.dashboard --check   fail if the dashboard differs

Links lead to `site_url` in mkdocs.yml: a pager cannot open a path in a repository.

Grafana's own export is hundreds of lines for a panel of one query; here a panel is a line, and the file has
what differs from Grafana's defaults.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RULES: Final = ROOT / "deploy/monitoring"
TARGET: Final = RULES / "grafana/tallystick.json"
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24
_LOGINS: Final = "kafka_server_socket_server_metrics"
_SITE: Final = re.compile(r"^site_url: (\S+/)$", re.MULTILINE)
_RUNBOOK: Final = re.compile(r"^( +runbook_url: )\S*?(runbooks/[a-z]+/#[a-z]+)$", re.MULTILINE)
JOB: Final = 'job=~"$job"'


@dataclass(frozen=True)
class Panel:
    """One panel. `queries`: expression and legend of each; a stat is red from `red` on."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    red: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Row:
    """A row of the dashboard, with its panels."""

    title: str
    panels: tuple[Panel, ...]


def stat(title: str, expr: str, unit: str = "short", red: float | None = None, text: str = "") -> Panel:
    """Return a panel with one number."""
    return Panel(title, ((expr, ""),), unit, "stat", 4, 4, red, text)


def graph(
    title: str, *queries: tuple[str, str], unit: str = "short", width: int = 8, text: str = ""
) -> Panel:
    """Return a panel with lines."""
    return Panel(title, queries, unit, width=width, text=text)


def rate(metric: str, by: str, function: str = "rate", window: str = "$__rate_interval") -> str:
    """Return the rate of a counter, summed over all other labels."""
    return f"sum by ({by}) ({function}({metric}{{{JOB}}}[{window}]))"


def quantiles(metric: str, by: str) -> str:
    """Return the 95th percentile of a histogram."""
    return f"histogram_quantile(0.95, sum by (le, {by}) (rate({metric}_bucket{{{JOB}}}[$__rate_interval])))"


ROWS: Final = (
    Row(
        "Health",
        (
            stat(
                "Broken, hanging, orphan",
                f'sum(tallystick_cluster_transactions{{{JOB},health=~"broken|hanging|orphan"}})',
                red=1,
                text="No process will end them rightly by itself. The console's first page has the command.",
            ),
            stat("To recover", f'sum(tallystick_cluster_transactions{{{JOB},health="recover"}})', red=1),
            stat(
                "Oldest in doubt",
                f'max(tallystick_cluster_oldest_transaction_seconds{{{JOB},kind="in_doubt"}})',
                "s",
                900,
                "Open transactions of two-phase commit; they never time out.",
            ),
            stat("Readers wait for", f"max(tallystick_cluster_held_back_seconds{{{JOB}}})", "s", 600),
            stat("Stores away", f"count(tallystick_store_reachable{{{JOB}}} == 0) or vector(0)", red=1),
            stat(
                "Oldest data",
                f"max(tallystick_console_part_age_seconds{{{JOB}}})",
                "s",
                300,
                "Age of the oldest part of what the console shows.",
            ),
        ),
    ),
    Row(
        "Transactions",
        (
            graph("By health", (f"sum by (health) (tallystick_cluster_transactions{{{JOB}}})", "{{health}}")),
            graph(
                "Age of the oldest",
                (f"max by (kind) (tallystick_cluster_oldest_transaction_seconds{{{JOB}}})", "{{kind}}"),
                unit="s",
                text="prepared: decided by a database or by Spark, and not yet committed in Kafka.",
            ),
            graph(
                "By state",
                (f"sum by (state) (tallystick_cluster_transactions_by_state{{{JOB}}})", "{{state}}"),
            ),
        ),
    ),
    Row(
        "Readers",
        (
            graph(
                "Held back, seconds",
                (
                    f"topk(20, tallystick_cluster_partition_held_back_seconds{{{JOB}}})",
                    "{{topic}}-{{partition}}",
                ),
                unit="s",
            ),
            graph(
                "Held back, records",
                (
                    f"topk(20, tallystick_cluster_partition_held_back_records{{{JOB}}})",
                    "{{topic}}-{{partition}}",
                ),
            ),
            graph(
                "Lag in data records",
                (f'topk(20, tallystick_group_lag_records{{{JOB},group=~"$group"}})', "{{group}}"),
                text="Markers, aborted records and what no one may read yet are not counted.",
            ),
            graph(
                "Lag in offsets",
                (f'topk(20, tallystick_group_lag_offsets{{{JOB},group=~"$group"}})', "{{group}}"),
                text="What other tools show.",
            ),
            graph(
                "Members",
                (f'tallystick_group_members{{{JOB},group=~"$group"}}', "{{group}} {{state}}"),
            ),
            graph(
                "Offsets pending in a transaction",
                (f'tallystick_group_pending_partitions{{{JOB},group=~"$group"}} > 0', "{{group}}"),
            ),
        ),
    ),
    Row(
        "Databases and Spark's decisions",
        (
            graph(
                "Undecided",
                (f"tallystick_store_undecided_transactions{{{JOB}}}", "{{store}}"),
                text="Open transactions that the database has not committed so far.",
            ),
            graph(
                "Decided and open",
                (f"tallystick_store_decided_transactions{{{JOB}}}", "{{store}}"),
                text="The database has committed; Kafka has not yet.",
            ),
            graph(
                "Expired leases, prepared in the server",
                (f"tallystick_store_expired_leases{{{JOB}}}", "leases of {{store}}"),
                (f"tallystick_store_prepared_transactions{{{JOB}}}", "prepared in {{store}}"),
            ),
            graph(
                "Since the last decision",
                (f"tallystick_pipeline_decision_age_seconds{{{JOB}}}", "{{prefix}}"),
                unit="s",
            ),
            graph(
                "Transactions of the last decision",
                (f"tallystick_pipeline_participants{{{JOB}}}", "{{prefix}}"),
            ),
            graph(
                "Unfinished decisions",
                (f"tallystick_pipeline_unfinished_decision{{{JOB}}}", "{{prefix}}"),
            ),
        ),
    ),
    Row(
        "Dual writes of applications",
        (
            graph(
                "Writes by outcome",
                (
                    rate("tallystick_dual_writes_total", "writer, outcome"),
                    "{{writer}} {{outcome}}",
                ),
                unit="ops",
            ),
            graph(
                "Steps, 95th percentile",
                (quantiles("tallystick_dual_write_step_seconds", "step"), "{{step}}"),
                unit="s",
            ),
            graph(
                "In doubt, unsettled",
                (f"sum by (writer) (tallystick_dual_write_writers_in_doubt{{{JOB}}})", "{{writer}} in doubt"),
                (
                    f"sum by (writer) (tallystick_dual_write_writers_unsettled{{{JOB}}})",
                    "{{writer}} unsettled",
                ),
            ),
            graph(
                "Recoveries and repetitions",
                (
                    rate("tallystick_dual_write_recoveries_total", "writer, result"),
                    "{{writer}} {{result}}",
                ),
                (
                    rate("tallystick_dual_write_retries_total", "writer"),
                    "{{writer}} repeated",
                ),
                unit="ops",
            ),
            graph(
                "Pools",
                (f"sum by (writer) (tallystick_dual_write_pool_free{{{JOB}}})", "{{writer}} free"),
                (f"sum by (writer) (tallystick_dual_write_writers{{{JOB}}})", "{{writer}} writers"),
            ),
        ),
    ),
    Row(
        "Streaming queries",
        (
            graph(
                "Rows",
                (
                    rate("tallystick_spark_query_rows_total", "query"),
                    "{{query}}",
                ),
            ),
            graph(
                "Phases, 95th percentile",
                (quantiles("tallystick_spark_query_phase_seconds", "phase"), "{{phase}}"),
                unit="s",
            ),
            graph(
                "Lag and replays",
                (f"tallystick_spark_query_lag_records{{{JOB}}}", "{{query}} lag"),
                (
                    rate("tallystick_spark_query_replays_total", "query", "increase", "1h"),
                    "{{query}} replays an hour",
                ),
            ),
        ),
    ),
    Row(
        "tallystick's broker",
        (
            graph(
                "Reserve of the disk",
                (f"tallystick_reserve_bytes{{{JOB}}}", "held {{instance}}"),
                (f"tallystick_reserve_missing_bytes{{{JOB}}}", "missing {{instance}}"),
                unit="bytes",
            ),
            graph(
                "Held back from retention",
                (f"tallystick_retention_held_back_bytes{{{JOB}}}", "{{instance}}"),
                unit="bytes",
            ),
            graph(
                "Certificates",
                (f"tallystick_tls_certificate_days_left{{{JOB}}}", "{{instance}} {{listener}}"),
                unit="d",
            ),
            graph(
                "Logins",
                (
                    rate(f"{_LOGINS}_successful_authentication_total", "listener"),
                    "{{listener}}",
                ),
                (
                    rate(f"{_LOGINS}_failed_authentication_total", "listener"),
                    "{{listener}} failed",
                ),
                unit="ops",
            ),
            graph(
                "Forced outcomes, deletions refused",
                (
                    rate("tallystick_forced_outcomes_total", "cause", "increase"),
                    "{{cause}}",
                ),
                (
                    f"sum(increase(tallystick_deletions_refused_total{{{JOB}}}[$__rate_interval]))",
                    "deletions",
                ),
            ),
            graph(
                "Coordinators' partitions that are offline",
                (f"tallystick_transaction_log_offline_partitions{{{JOB}}}", "transactions {{instance}}"),
                (f"tallystick_offsets_log_offline_partitions{{{JOB}}}", "groups {{instance}}"),
            ),
        ),
    ),
)


def build_variable(name: str, label: str, query: str) -> dict[str, Any]:
    """Return a variable whose values are those of a label."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def build_panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    """Return a panel as Grafana has it."""
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.red is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.red}]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"colorMode": "background"} if panel.kind == "stat" else {"tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": expr,
                "legendFormat": legend or "__auto",
            }
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }


def list_panels() -> Iterator[dict[str, Any]]:
    """Yield rows and panels, from left to right and down."""
    number = y = 0
    for row in ROWS:
        number += 1
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + panel.height
            number += 1
            yield build_panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": panel.height})
            x += panel.width
        y += row.panels[-1].height


def build() -> str:
    """Return the dashboard's file."""
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
    }
    dashboard = {
        "uid": "tallystick",
        "title": "tallystick",
        "tags": ["kafka", "transactions"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                source,
                build_variable("job", "Job", 'label_values({__name__=~"tallystick_.*"}, job)'),
                build_variable("group", "Group", "label_values(tallystick_group_lag_offsets, group)"),
            ]
        },
        "panels": list(list_panels()),
    }
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def read_site() -> str:
    """Return the address of the published documentation, with a slash at its end."""
    line = _SITE.search((ROOT / "mkdocs.yml").read_text())
    if line is None:
        raise SystemExit("mkdocs.yml: site_url is missing, or ends without a slash")
    return line[1]


def link_runbooks(rules: str, site: str) -> str:
    """Return rules whose runbooks are pages of this site."""
    return _RUNBOOK.sub(lambda line: f"{line[1]}{site.removesuffix('/')}/{line[2]}", rules)


def main() -> int:
    """Write the files, or compare the dashboard."""
    text = build()
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.read_text() == text else 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text)
    site = sys.argv[1] if len(sys.argv) > 1 else read_site()
    for path in sorted(RULES.glob("*.rules.yml")):
        path.write_text(link_runbooks(path.read_text(), site))
    return 0


if __name__ == "__main__":
    sys.exit(main())
