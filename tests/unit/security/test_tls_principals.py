"""Names of certificates and the rules that shorten them, beside what Java and Kafka make of the same."""

from pathlib import Path

import pytest

from tallystick.kernel.settings import BadConfig
from tallystick.security.tls.certificates import parse_certificate
from tallystick.security.tls.der import BadDer, format_oid
from tallystick.security.tls.names import format_name, read_subject_name
from tallystick.security.tls.principal_rules import NoMatchingRule, map_principal, parse_principal_rules

VECTORS = Path(__file__).parents[2] / "vectors"


def test_names_are_spelt_as_java_spells_them() -> None:
    lines = (VECTORS / "principals" / "names.txt").read_text().splitlines()
    assert len(lines) > 100
    for line in lines:
        name, _, spelt = line.partition(" ")
        assert format_name(bytes.fromhex(name)) == bytes.fromhex(spelt).decode(), name


def test_subject_of_a_certificate() -> None:
    certificate = (VECTORS / "stores" / "key.der").read_bytes()
    assert read_subject_name(certificate) == "CN=localhost,O=Tally\\, Stick,C=DE"


def test_rules_are_applied_as_kafka_applies_them() -> None:
    """Three deviations, each stricter: an empty name, no rule at all, and a reference to no group."""
    lines = (VECTORS / "principals" / "rules.txt").read_text().splitlines()
    assert len(lines) > 200
    for line in lines:
        rules, name, kafka = line.split("\t")
        if kafka == "=":
            kafka = "!none"
        elif not rules or rules == "RULE:CN=.*/$1/":
            kafka = "!bad"
        assert outcome(rules, name) == kafka, line


def outcome(rules: str, name: str) -> str:
    try:
        return "=" + map_principal(parse_principal_rules(rules), name)
    except BadConfig:
        return "!bad"
    except NoMatchingRule:
        return "!none"


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("DEFAULT,RULE:a/b/", "behind DEFAULT are never reached"),
        ("RULE:a/b", "neither DEFAULT nor RULE"),
        ("RULE:[a-z&&[^b]]/b/", "&& in a class is Java's alone"),
        (r"RULE:\p{Lu}/b/", "is no pattern here"),
        ("RULE:a/$1/", "refers to a group"),
        (" ", "there is no rule"),
    ],
)
def test_rules_that_are_refused(rules: str, why: str) -> None:
    with pytest.raises(BadConfig, match=r"ssl\.principal\.mapping\.rules") as caught:
        parse_principal_rules(rules)
    assert why in str(caught.value)


def test_classes_are_ascii_as_in_java() -> None:
    rules = parse_principal_rules(r"RULE:CN=(\w+)/$1/")
    assert map_principal(rules, "CN=alice") == "alice"
    with pytest.raises(NoMatchingRule, match=r"CN=älice"):
        map_principal(rules, "CN=älice")


def test_a_line_end_of_java_stops_a_dot() -> None:
    with pytest.raises(NoMatchingRule):
        map_principal(parse_principal_rules("RULE:CN=(.*)/$1/"), "CN=admin\u2028x")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "30",
        "3003",
        "30820005",
        "300230",
        "3080",
        "1f8100",
        "3003310131",
        "300531033001ff",
        "30840fffffff",
    ],
)
def test_damaged_names_are_refused(name: str) -> None:
    with pytest.raises(BadDer):
        format_name(bytes.fromhex(name))


def test_a_number_of_thousands_of_digits_names_no_attribute() -> None:
    """Python prints no number of more than 4,300 digits, and reading one costs the square of its length."""
    for size in (257, 5_000):
        with pytest.raises(BadDer, match="object identifier"):
            format_oid(b"\xff" * (size - 1) + b"\x01")
    assert format_oid(bytes.fromhex("6981") + b"\xff" * 17 + b"\x7f").startswith("2.25.")


def test_every_cut_of_a_certificate_is_refused() -> None:
    certificate = (VECTORS / "stores" / "key.der").read_bytes()
    assert len(parse_certificate(certificate).alternative_names) == 2
    for size in range(len(certificate)):
        with pytest.raises(BadDer):
            parse_certificate(certificate[:size])
