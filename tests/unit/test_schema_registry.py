"""The schema registry for tests: what it answers, by Confluent's API, and where it ends."""

import json

import pytest

from tallystick.testing import schema_registry
from tallystick.testing.schema_registry import RegistryState, SchemaRegistry

ONE = '{"type": "record", "name": "P", "fields": [{"name": "a", "type": "int"}]}'
WITH_DEFAULT = ONE.replace("]", ', {"name": "b", "type": "string", "default": ""}]')
WITHOUT_DEFAULT = ONE.replace("]", ', {"name": "c", "type": "string"}]')


@pytest.fixture
def state() -> RegistryState:
    return RegistryState()


def ok(answer: tuple[int, object]) -> dict[str, object]:
    status, body = answer
    assert status == 200, body
    assert isinstance(body, dict)
    return body


def code(answer: tuple[int, object]) -> tuple[int, object]:
    status, body = answer
    assert isinstance(body, dict)
    return status, body["error_code"]


def register(state: RegistryState, subject: str, schema: str, **more: object) -> dict[str, object]:
    return ok(state.answer("POST", f"/subjects/{subject}/versions", {"schema": schema, **more}))


def test_one_id_stands_for_one_schema_in_all_subjects(state: RegistryState) -> None:
    assert register(state, "t-value", ONE)["id"] == 1
    assert register(state, "t-value", json.dumps(json.loads(ONE), indent=2))["id"] == 1
    assert register(state, "u-value", ONE)["id"] == 1
    assert register(state, "u-value", WITH_DEFAULT)["id"] == 2
    assert state.answer("GET", "/subjects", {}) == (200, ["t-value", "u-value"])
    assert state.answer("GET", "/subjects/u-value/versions", {}) == (200, [1, 2])
    assert ok(state.answer("GET", "/subjects/u-value/versions/latest", {}))["id"] == 2
    assert ok(state.answer("GET", "/subjects/u-value/versions/1", {}))["schema"] == ONE
    assert ok(state.answer("GET", "/schemas/ids/2", {}))["schema"] == WITH_DEFAULT
    assert ok(state.answer("POST", "/subjects/u-value", {"schema": WITH_DEFAULT}))["version"] == 2
    uses = state.answer("GET", "/schemas/ids/1/versions", {})
    assert uses == (200, [{"subject": "t-value", "version": 1}, {"subject": "u-value", "version": 1}])


def test_what_is_not_there_has_confluents_codes(state: RegistryState) -> None:
    register(state, "t-value", ONE)
    assert code(state.answer("GET", "/subjects/u/versions", {})) == (404, 40401)
    assert code(state.answer("GET", "/subjects/t-value/versions/2", {})) == (404, 40402)
    assert code(state.answer("GET", "/schemas/ids/9", {})) == (404, 40403)
    assert code(state.answer("POST", "/subjects/t-value", {"schema": WITH_DEFAULT})) == (404, 40403)
    assert code(state.answer("POST", "/subjects/t-value/versions", {"schema": "{"})) == (422, 42201)
    assert code(state.answer("POST", "/subjects/t-value/versions", {})) == (422, 42201)
    assert code(state.answer("GET", "/config/t-value", {})) == (404, 40408)
    assert code(state.answer("PUT", "/config", {"compatibility": "SOME"})) == (422, 42203)
    assert code(state.answer("DELETE", "/subjects/t-value", {})) == (404, 404)


def test_an_incompatible_schema_is_refused_until_the_level_allows_it(state: RegistryState) -> None:
    register(state, "t-value", ONE)
    body = {"schema": WITHOUT_DEFAULT}
    assert code(state.answer("POST", "/subjects/t-value/versions", body)) == (409, 409)
    check = ok(state.answer("POST", "/compatibility/subjects/t-value/versions/latest", body))
    assert check["is_compatible"] is False
    ok(state.answer("PUT", "/config/t-value", {"compatibility": "forward"}))
    assert ok(state.answer("GET", "/config/t-value", {})) == {"compatibilityLevel": "FORWARD"}
    assert register(state, "t-value", WITHOUT_DEFAULT)["id"] == 2


def test_only_transitive_levels_look_past_the_last_version(state: RegistryState) -> None:
    text_now = '{"type":"record","name":"P","fields":[{"name":"c","type":["null","string"],"default":null}]}'
    register(state, "t-value", '{"type":"record","name":"P","fields":[{"name":"c","type":"int"}]}')
    ok(state.answer("PUT", "/config", {"compatibility": "NONE"}))
    register(state, "t-value", '{"type":"record","name":"P","fields":[]}')
    ok(state.answer("PUT", "/config", {"compatibility": "BACKWARD_TRANSITIVE"}))
    assert code(state.answer("POST", "/subjects/t-value/versions", {"schema": text_now})) == (409, 409)
    ok(state.answer("PUT", "/config", {"compatibility": "BACKWARD"}))
    assert register(state, "t-value", text_now)["id"] == 3


def test_other_types_are_kept_as_they_are(state: RegistryState) -> None:
    register(state, "p-value", 'syntax = "proto3";', schemaType="PROTOBUF")
    assert ok(state.answer("GET", "/schemas/ids/1", {}))["schemaType"] == "PROTOBUF"
    assert (
        code(state.answer("POST", "/subjects/x/versions", {"schema": "{}", "schemaType": "XML"}))[1] == 42201
    )


def test_the_number_of_schemas_is_bounded(state: RegistryState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "SCHEMAS_MAX", 1)
    register(state, "t-value", ONE)
    answer = state.answer("POST", "/subjects/u-value/versions", {"schema": WITH_DEFAULT})
    assert code(answer) == (507, 50701)


def test_a_registry_that_is_not_started_has_no_address() -> None:
    registry = SchemaRegistry()
    with pytest.raises(RuntimeError, match="not started"):
        _ = registry.url
    assert registry.register("s", ONE) == 1
    with pytest.raises(ValueError, match="42201"):
        registry.register("s", "{")
