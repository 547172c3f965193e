"""Policies in blocks: what may be written, what is stored, and what is made of the code's own options."""

from __future__ import annotations

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
from prefect_resilience import Backoff, CircuitBreaker, Fallback, Retry, Timeout, resilient_task
from prefect_resilience.calls.model import Guard
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.tasks.edge.live_policy import read_policy, with_policy
from prefect_resilience.tasks.edge.policy_block import ResiliencePolicy

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


def archive(drug: str) -> str:
    return f"archive of {drug}"


def small_model(drug: str) -> str:
    return f"small model on {drug}"


def guard(**options: Any) -> Guard:
    @resilient_task(policy="llm-default", **options)
    def ask(drug: str, provider: str = "primary") -> str:
        return drug

    return ask.guard


def changed(own: Guard, **says: Any) -> Guard:
    return with_policy(own, read_policy(says))


def test_what_it_does_not_say_stays():
    own = guard(retry=3, circuit="kg", timeout=5, fallback=[archive], effect="external", dead_letter=True)
    assert changed(own) == own
    for says in ({"retry": 5}, {"timeout": 9}, {"fallback": ["archive"]}, {"circuit": {"open_for": 1}}):
        made = changed(own, **says)
        (name,) = says
        for field in ("retry", "circuit", "timeout", "fallbacks", "effect", "dead_letter", "fn", "policy"):
            if field.removesuffix("s") != name:
                assert getattr(made, field) == getattr(own, field), field


@pytest.mark.parametrize(
    ("own", "says", "means"),
    [
        (
            Retry(attempts=2, by_category={"rate_limit": 4}),
            5,
            Retry(attempts=5, by_category={"rate_limit": 4}),
        ),
        (
            Retry(by_category={"rate_limit": 4, "timeout": 2}),
            {"by_category": {"timeout": 5}},
            Retry(by_category={"rate_limit": 4, "timeout": 5}),
        ),
        (None, {"attempts": 4}, Retry(attempts=4)),
        (
            Retry(backoff=Backoff.exponential(initial=2, maximum=9)),
            {"backoff": {"initial": 1}},
            Retry(backoff=Backoff.exponential(initial=1, maximum=9)),
        ),
        (
            Retry(backoff=Backoff.exponential(initial=2, maximum=9)),
            {"backoff": {"kind": "constant", "initial": 1}},
            Retry(backoff=Backoff.constant(1)),
        ),
        (
            Retry(backoff=Backoff.schedule([1, 2])),
            {"backoff": {"initial": 3}},
            Retry(backoff=Backoff.exponential(3)),
        ),
        (Retry(backoff=Backoff.none()), {"backoff": {"initial": 3}}, Retry(backoff=Backoff.exponential(3))),
        (Retry(retry_on=["timeout"]), {"retry_on": ["503"]}, Retry(retry_on=["503"])),
    ],
)
def test_retries_are_merged_option_by_option(own: Any, says: Any, means: Retry):
    assert changed(guard(retry=own), retry=says).retry == means


def test_its_timeout_keeps_the_codes_mode():
    assert changed(guard(timeout=Timeout(5, mode="thread")), timeout=9).timeout == Timeout(9, mode="thread")
    assert changed(guard(), timeout=9).timeout == Timeout(9)


def test_its_fallbacks_are_chosen_and_ordered_by_name():
    own = guard(fallback=[archive, Fallback(small_model, degraded=True)])
    assert changed(own, fallback=["small_model", "archive"]).fallbacks == own.fallbacks[::-1]
    assert changed(own, fallback=[]).fallbacks == own.fallbacks


def test_its_circuit_lives_beside_the_codes_own(own_store: None):
    breaker = CircuitBreaker("llm:{provider}", failure_threshold=5, open_for=60)
    made = changed(guard(circuit=breaker), circuit={"failure_threshold": 1}).circuit
    assert made is not None
    assert (made.name, made.fields) == (breaker.name, breaker.fields)
    assert (made.policy.failure_threshold, made.policy.open_for) == (1, 60)
    bound = made.bind({"provider": "primary"})
    with pytest.raises(TimeoutError):
        bound.call(_times_out)
    # One failure was enough; whoever has the code's own policy meets the same open circuit.
    assert breaker.bind({"provider": "primary"}).snapshot().state == "open"
    again = changed(guard(circuit=breaker), circuit={"failure_threshold": 2}).circuit
    assert again is not None
    assert again.bind({"provider": "primary"}).state == "open"
    assert changed(guard(circuit=breaker), circuit={"failure_threshold": 5}).circuit is breaker


def _times_out() -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    ("options", "says", "sentence"),
    [
        (
            {},
            {"circuit": {"open_for": 2}},
            "neither the block nor the code names a circuit: write circuit.name",
        ),
        (
            {"circuit": CircuitBreaker("kg", probe_calls=3)},
            {"circuit": {"success_threshold": 4}},
            "CircuitBreaker('kg'): probe_calls=3 is less than success_threshold=4",
        ),
        ({}, {"circuit": "llm:{provder}"}, "not a parameter of 'ask'; did you mean 'provider'?"),
        ({"fallback": [archive]}, {"fallback": ["archiv"]}, "no fallback 'archiv'; did you mean 'archive'?"),
        ({}, {"fallback": ["archive"]}, "fallback: the task has no fallback 'archive'"),
        (
            {},
            {"retry": {"attempts": 90, "by_category": {"timeout": {"attempts": 50}}}},
            "139 attempts are more",
        ),
    ],
)
def test_what_cannot_be_meant_for_this_task_is_one_sentence(
    options: dict[str, Any], says: dict[str, Any], sentence: str
):
    with pytest.raises(ConfigurationError, match=r"^[^\n]+$") as caught:
        changed(guard(**options), **says)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["", 3, object()])
def test_a_policy_is_a_name(name: Any):
    with pytest.raises(ConfigurationError, match="is not a name: write the name of a ResiliencePolicy"):
        resilient_task(policy=name)(archive)
