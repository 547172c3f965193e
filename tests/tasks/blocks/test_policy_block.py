"""The block itself: what may be written, what is stored, and the form that the UI makes of it."""

import json
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.utilities.schema_tools.validation import preprocess_schema, validate
from pydantic import ValidationError

import prefect_resilience
from prefect_resilience import Backoff, Retry
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.tasks.edge.live_policy import read_policy
from prefect_resilience.tasks.edge.policy_block import (
    ResiliencePolicy,
)

FORM = Path(__file__).with_name("policy_form.json")

EVERYTHING = {
    "retry": {
        "attempts": 5,
        "backoff": {"kind": "exponential", "initial": 0.5, "multiplier": 3.0, "maximum": 20.0, "jitter": 0.1},
        "max_elapsed": 60.0,
        "retry_on": ["rate_limit", "503"],
        "give_up_on": ["auth"],
    },
    "circuit": {
        "name": "llm:{provider}",
        "failure_threshold": 3,
        "volume_threshold": 4,
        "failure_rate": 0.5,
        "minimum_calls": 20,
        "window": "120s",
        "open_for": 10.0,
        "open_max": 60.0,
        "success_threshold": 1,
        "probe_calls": 2,
    },
    "timeout": 20.0,
    "fallback": ["small_model", "archive"],
}


def test_prefect_finds_it_by_its_entry_point():
    (found,) = [
        point for point in entry_points(group="prefect.collections") if point.name == "prefect_resilience"
    ]
    assert found.load().ResiliencePolicy is ResiliencePolicy
    assert prefect_resilience.ResiliencePolicy is ResiliencePolicy
    assert ResiliencePolicy.get_block_type_slug() == "resilience-policy"


@pytest.mark.smoke
@pytest.mark.api
def test_what_is_written_is_what_comes_back():
    ResiliencePolicy(**EVERYTHING).save("everything")
    loaded = ResiliencePolicy.load("everything")
    assert loaded.as_options() == EVERYTHING


@pytest.mark.api
def test_saved_again_it_says_nothing_of_what_it_said_before():
    ResiliencePolicy(**EVERYTHING).save("little", overwrite=True)
    ResiliencePolicy(retry={"attempts": 5}).save("little", overwrite=True)
    assert ResiliencePolicy.load("little").as_options() == {"retry": {"attempts": 5}}
    with get_client(sync_client=True) as client:
        data = client.read_block_document_by_name("little", "resilience-policy").data
    # The UI checks what it shows before it saves it again.
    schema = preprocess_schema(ResiliencePolicy.model_json_schema(ref_template="#/definitions/{model}"))
    assert validate(data, schema, preprocess=False) == []


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ({"retry": 4}, {"retry": {"attempts": 4}}),
        ({"retry": Retry(attempts=4)}, {"retry": {"attempts": 4}}),
        ({"retry": {"max_retries": 2}}, {"retry": {"attempts": 3}}),
        ({"circuit": "orders"}, {"circuit": {"name": "orders"}}),
        ({"circuit": {"open_for": 5, "window": 50}}, {"circuit": {"open_for": 5.0, "window": "50"}}),
        ({"fallback": "small_model"}, {"fallback": ["small_model"]}),
        ({"retry": None, "circuit": None, "timeout": None, "fallback": []}, {}),
        # As a form leaves fields behind that were written once and emptied.
        ({"retry": {"attempts": None, "backoff": {}, "retry_on": []}, "circuit": {"name": ""}}, {}),
        # What the form does not show is kept.
        (
            {"retry": {"by_category": {"rate_limit": {"attempts": 9}}}, "circuit": {"adaptive": True}},
            {"retry": {"by_category": {"rate_limit": {"attempts": 9}}}, "circuit": {"adaptive": True}},
        ),
    ],
)
def test_it_reads_what_the_policies_read(written: dict[str, Any], means: dict[str, Any]):
    assert ResiliencePolicy(**written).as_options() == means


def test_it_keeps_a_schedule_of_delays():
    (retry,) = ResiliencePolicy(retry=Retry(backoff=Backoff.schedule([1, 5]))).as_options().values()
    assert Retry(**retry).backoff == Backoff.schedule([1, 5])


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"retry": {"atempts": 3}}, "retry: Retry has no option 'atempts'; did you mean 'attempts'?"),
        ({"retry": {"retry_on": ["rate_limt"]}}, "did you mean 'rate_limit'?"),
        ({"circuit": {"open_fr": 3}}, "circuit: a circuit has no option 'open_fr'; did you mean 'open_for'?"),
        ({"circuit": {"open_for": -1}}, "circuit: CircuitPolicy(open_for=-1): write at least 0"),
        ({"retry": {"attempts": 200}}, "retry.attempts: Input should be less than or equal to 101"),
        ({"timeout": 0}, "timeout: Input should be greater than 0"),
        ({"timeout": "soon"}, "timeout: Input should be a valid number"),
        ({"fallback": [""]}, "fallback.0: "),
        ({"retry": "much"}, "retry: "),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(written: dict[str, Any], says: str):
    with pytest.raises(ConfigurationError, match=r"^[^\n]+$") as caught:
        read_policy(written)
    assert says in str(caught.value)
    with pytest.raises(ValidationError):
        ResiliencePolicy(**written)


def fields_of(schema: dict[str, Any], property: dict[str, Any]) -> dict[str, dict[str, Any]]:
    name = property["$ref"].removeprefix("#/definitions/")
    return schema["definitions"][name]["properties"]


def test_the_form_has_a_plain_field_for_everything():
    """A choice between a number and nothing would be a switch and a box for each of some twenty fields."""
    schema = ResiliencePolicy.model_json_schema(ref_template="#/definitions/{model}")
    retry, circuit = (fields_of(schema, schema["properties"][name]) for name in ("retry", "circuit"))
    backoff = fields_of(schema, retry.pop("backoff"))
    plain = {
        **retry,
        **circuit,
        **backoff,
        **{name: schema["properties"][name] for name in ("timeout", "fallback")},
    }
    for name, field in plain.items():
        assert field["type"] in {"integer", "number", "string", "array"}, name
        assert "default" not in field
        assert "anyOf" not in field
        assert field["description"].endswith(".")
    assert {part["title"] for part in schema["definitions"].values()} == {"Retry", "Backoff", "Circuit"}
    assert "required" not in schema
    assert validate({}, schema) == validate(EVERYTHING, schema) == []


def form() -> dict[str, Any]:
    """The parts of the form and their fields, whatever a version of pydantic adds to the schema."""
    schema = ResiliencePolicy.model_json_schema(ref_template="#/definitions/{model}")
    said: dict[str, Any] = {}
    for name, part in {"ResiliencePolicy": schema, **schema["definitions"]}.items():
        said[name] = [part["title"], part["description"], [*part["properties"]]]
        said |= {f"{name}.{field}": shown(property) for field, property in part["properties"].items()}
    return said


def shown(field: dict[str, Any]) -> Any:
    """A field as the form has it; of another part, its name: what stands beside a reference differs."""
    other = re.search(r"#/definitions/\w+", json.dumps(field))
    return other[0] if other else {name: said for name, said in field.items() if name != "position"}


def test_the_form_changes_knowingly():
    """Another form is another schema on every server. One that is meant is written down beside this file."""
    assert form() == json.loads(FORM.read_text(encoding="utf-8"))
