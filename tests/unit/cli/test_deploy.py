"""The files in deploy/: what starts a broker says what its parser, its settings and the schemas take."""

import configparser
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.serve import MUST_BE_LOOKED_AT, STOP_TIMEOUT_S
from tallystick.cli.commands.broker import _build_parser, _merge_settings
from tallystick.kernel.settings import read_properties

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy/tallystick.service"
CONTAINERFILE = ROOT / "deploy/Containerfile"
MANIFESTS = ROOT / "deploy/kubernetes/tallystick.yaml"
KUBERNETES = ("1.31", "1.37")
"""The oldest and the newest version whose schemas the manifests are held against."""


def parse_command(words: Sequence[str], file: str = "") -> BrokerConfig:
    """Read the settings of a command as it does; its file has this text."""
    assert list(words[:2]) == ["tallystick", "broker"]
    options = _build_parser().parse_args(list(words[2:]))
    return BrokerConfig.parse(_merge_settings(read_properties(file, "the file"), options))


# ------------------------------------------------------------------------------------------ systemd


def read_unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    return unit


def test_the_unit_stops_trying_when_a_person_must_look() -> None:
    """ "systemd unit that stops trying when a person must look"."""
    unit, service = read_unit()["Unit"], read_unit()["Service"]
    assert service["RestartPreventExitStatus"].split() == ["2", str(MUST_BE_LOOKED_AT)]
    interval = re.fullmatch(r"(\d+)min", unit["StartLimitIntervalSec"])
    assert interval is not None
    starts_s = int(unit["StartLimitBurst"]) * (int(service["RestartSec"]) + 60)  # that last a minute each
    assert starts_s < int(interval[1]) * 60
    assert int(service["TimeoutStopSec"]) > STOP_TIMEOUT_S


def test_the_units_files_are_its_own_and_it_is_ready_when_it_says_so() -> None:
    service = read_unit()["Service"]
    names = ("Type", "StateDirectoryMode", "UMask", "ExecReload")
    assert [service[name] for name in names] == ["notify", "0750", "0027", "/bin/kill -HUP $MAINPID"]
    path, *words = service["ExecStart"].split()
    config = parse_command([Path(path).name, *words], (ROOT / "deploy/server.properties").read_text())
    assert config.log_dirs == f"/var/lib/{service['StateDirectory']}"


@pytest.mark.slow
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    path = read_unit()["Service"]["ExecStart"].split()[0]
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(path, "/bin/true"))
    done = subprocess.run(
        [analyze, "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# ---------------------------------------------------------------------------------------- container


def read_instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile with their arguments."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def test_the_image_has_a_pinned_base_a_user_by_number_and_a_health_check() -> None:
    """ "pinned base, non-root, health check"."""
    instructions = read_instructions()
    bases = [rest.split()[0] for word, rest in instructions if word == "FROM"]
    assert [base for base in bases if not re.fullmatch(r"python:\d+\.\d+\.\d+-[a-z-]+", base)] == []
    named = dict(instructions)
    assert int(named["USER"]) > 0
    assert '"tallystick.broker.ping"' in named["HEALTHCHECK"]
    installs = [rest for _, rest in instructions if "pip install" in rest or "pip wheel" in rest]
    assert [rest for rest in installs if "constraints.txt" not in rest] == []
    words = json.loads(named["ENTRYPOINT"]) + json.loads(named["CMD"])
    config = parse_command(words)
    assert (config.log_dirs, config.logging_format) == (named["VOLUME"], "json")
    assert f":{named['EXPOSE']}" in config.listeners


def test_the_build_sees_what_a_wheel_is_made_of_and_no_environment_of_a_developer() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line[0] == "!"}
    assert {"src", "pyproject.toml", "setup.py", "constraints.txt", "README.md", "LICENSE"} == allowed
    assert [name for name in allowed if not (ROOT / name).exists()] == []


# --------------------------------------------------------------------------------------- Kubernetes


def read_manifests() -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFESTS.read_text())}


@pytest.mark.slow
@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    """ "checked by a schema validator from the registries": a field that it does not know is refused, too."""
    manifests = read_manifests()
    assert set(manifests) == {"ConfigMap", "Service", "NetworkPolicy", "StatefulSet"}
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    manifests["Service"]["spec"]["port"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifests["Service"], version, strict=True)


def test_the_manifests_name_each_other() -> None:
    manifests = read_manifests()
    stateful, service = manifests["StatefulSet"]["spec"], manifests["Service"]["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    selectors = [service["selector"], stateful["selector"]["matchLabels"]]
    selectors.append(manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"])
    assert [each for each in selectors if not each.items() <= labels.items()] == []
    assert (service["clusterIP"], stateful["serviceName"]) == (
        "None",
        manifests["Service"]["metadata"]["name"],
    )
    (container,) = stateful["template"]["spec"]["containers"]
    volumes = stateful["template"]["spec"]["volumes"] + [
        each["metadata"] for each in stateful["volumeClaimTemplates"]
    ]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in volumes}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert {each["targetPort"]: each["port"] for each in service["ports"]} == ports


def test_the_pod_runs_the_image_as_its_user_with_settings_that_the_broker_takes() -> None:
    manifests = read_manifests()
    pod = manifests["StatefulSet"]["spec"]["template"]["spec"]
    user = int(dict(read_instructions())["USER"])
    context = pod["securityContext"]
    assert [context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")] == [user] * 3
    (container,) = pod["containers"]
    values = {"$(POD_NAME)": "tallystick-0", "$(POD_NAMESPACE)": "payments"}
    words = [re.sub(r"\$\(\w+\)", lambda found: values[found[0]], word) for word in container["command"]]
    config = parse_command(words, manifests["ConfigMap"]["data"]["server.properties"])
    (listener,) = config.make_listeners()
    assert str(listener.advertised) == "tallystick-0.tallystick.payments.svc:9092"
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    metrics = config.make_metrics_listener()
    assert metrics is not None
    assert ports == {"kafka": listener.endpoint.port, "metrics": metrics.listener.endpoint.port}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["exec"]["command"][-1] == f"127.0.0.1:{listener.endpoint.port}"
