"""What readers of other people's text must keep, whatever the text: no other error than their own, in time.

Each is a Hypothesis test that a fuzzer can drive as well (`fuzz_one_input`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_resilience import Condition, ConditionError, ConfigurationError, ErrorInfo, classify
from prefect_resilience.errors.classify.retry_after import (
    duration,
    plain_headers,
    retry_after_seconds,
    wait_of_value,
)
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact, redact_data, register_secret
from prefect_resilience.graphs.conditions.paths import check_path, look_up, parsed, shown_path
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.reading.mistakes import PlanError
from prefect_resilience.graphs.plans.reading.reading import plan_of_text, read_plan
from prefect_resilience.stores.connected import check_key, decode, encode, prefix_end
from tests.graphs.conditions.strategies import condition_mistakes, conditions, results

MOST_SECONDS = 5.0
"""Of computing, for one input."""

given_freely = settings(
    max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True
)
NOW = 1_790_000_000.0
SECRET = "hunter2-hunter2-hunter2"

anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)


@contextmanager
def in_time() -> Iterator[None]:
    began = time.thread_time()
    yield
    spent = time.thread_time() - began
    assert spent < MOST_SECONDS, f"{spent:.1f} s for one input"


def words(text: str) -> list[str]:
    return text.split()


def pieces(*said: str) -> st.SearchStrategy[str]:
    """Text out of words that mean something to the reader, and anything between them."""
    return st.lists(st.sampled_from(said) | st.text(max_size=6), max_size=25).map("".join)


path_texts = pieces(
    *words(r"""
    $ . .. [ ] ? @ * ' " \ 0 -1 : a results || ! == < match( length( ) , 1e400 count(
    """),
    " && ",
    "[?@.x > 1]",
    "search(@.a, '(a+)+$')",
)
form_words = st.sampled_from(
    words(
        "type operator path value conditions condition comparison and or not gte contains matches exists "
        "success error source_task all any $ref equals in"
    )
)
forms: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | form_words | path_texts,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(form_words | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=15,
)


@given_freely
@given(form=forms | anything, value=results)
def condition_forms(form: Any, value: Any) -> None:
    """A form is a condition or is refused with its mistakes; a condition answers or says why it cannot."""
    with in_time():
        mistakes = condition_mistakes(form)
        try:
            condition = Condition.model_validate(form)
        except ValueError:
            assert mistakes, form
            return
        assert not mistakes, mistakes
        _ask(condition, value)


@given_freely
@given(condition=conditions, value=anything | results)
def condition_values(condition: Condition, value: Any) -> None:
    """Any condition of any value; and its JSON is the same condition."""
    with in_time():
        answer = _ask(condition, value)
        assert _ask(Condition.model_validate_json(condition.model_dump_json()), value) == answer


def _ask(condition: Condition, value: Any) -> bool | None:
    try:
        return condition.evaluate(value)
    except ConditionError:
        return None


@given_freely
@given(path=path_texts | st.text(), value=results)
def paths(path: str, value: Any) -> None:
    """A path is read or refused; what was read finds something, nothing, or says why not."""
    with in_time():
        shown_path(path)
        try:
            check_path(path)
        except (ConditionError, ConfigurationError):
            return
        try:
            look_up(path, value)
        except ConditionError:
            return
        if not path.startswith("$"):
            parsed(path)


plan_words = st.sampled_from(
    words(
        "tasks id type input depends_on condition on_success on_failure transitions to priority "
        "handles_error retry_policy max_attempts timeout_ms map trigger_rule execution cache circuit "
        "effect name version a b {{a.output.x}} {{ }} always all_success"
    )
)
plan_parts: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | plan_words | st.text(max_size=6) | forms,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(plan_words | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=15,
)
nodes = st.fixed_dictionaries(
    {"id": st.sampled_from("abc") | plan_parts, "type": st.just("x") | plan_parts},
    optional={
        "input": plan_parts,
        "depends_on": st.lists(st.sampled_from("abc")) | plan_parts,
        "condition": forms,
        "on_success": st.sampled_from("abc") | plan_parts,
        "on_failure": st.sampled_from("abc") | plan_parts,
        "transitions": plan_parts,
        "retry_policy": plan_parts,
        "timeout_ms": plan_parts,
        "map": plan_parts,
    },
)
plans = st.fixed_dictionaries(
    {"tasks": st.lists(nodes, max_size=5) | plan_parts}, optional={"name": plan_parts}
)


@given_freely
@given(form=plans | plan_parts)
def plan_forms(form: Any) -> None:
    """A plan is read whole or refused whole with every mistake; what was read can be drawn."""
    _plan(lambda: read_plan(form))


@given_freely
@given(
    text=plans.map(lambda form: json.dumps(form))
    | pieces(
        *words(r"""
    tasks: a *x { } [ ] !!python/ ' " | --- #
    """),
        "\n",
        "  ",
        "- ",
        "id: ",
        "&x ",
        "<<: ",
        ": ",
    )
)
def plan_texts(text: str) -> None:
    """JSON and YAML, however broken."""
    _plan(lambda: plan_of_text(text))


def _plan(read: Callable[[], Plan]) -> None:
    with in_time():
        try:
            plan = read()
        except (PlanError, ConfigurationError):
            return
        plan.to_mermaid()
        plan.to_svg()
        assert read_plan(plan.model_dump(mode="json")) == plan


header_words = pieces(
    *words(r"""
    1 9 . - e inf nan s ms m h 2026 -11-21T 00:00:00 Z +24:00 , ; w= 0x ٣
    """),
    "Mon, ",
    "30 Feb ",
    " GMT",
    " ",
)
header_names = st.sampled_from(
    words(
        "Retry-After retry-after-ms x-ratelimit-reset X-RateLimit-Reset-Requests ratelimit-reset Date "
        "x-ratelimit-remaining-requests x-ratelimit-reset-after ratelimit"
    )
)


@given_freely
@given(
    headers=st.dictionaries(header_names | st.text(max_size=8), header_words | anything, max_size=6)
    | st.lists(st.tuples(header_names | anything, header_words | st.binary(max_size=8)))
    | anything,
    status=st.sampled_from([None, 200, 400, 429, 500, 503, 999]),
)
def headers(headers: Any, status: int | None) -> None:
    """A wait is none, or a number of seconds from 0 on."""
    with in_time():
        plain = plain_headers(headers)
        waits = [retry_after_seconds(plain, status=status, now=NOW)]
        for value in [headers, *plain.values()]:
            waits += [wait_of_value(value, NOW), *([duration(value)] if isinstance(value, str) else [])]
        assert all(wait is None or (math.isfinite(wait) and wait >= 0) for wait in waits), waits
        error = Exception("no")
        error.response = SimpleNamespace(status_code=status, headers=headers)  # type: ignore[attr-defined]
        assert isinstance(classify(error), ErrorInfo)


@given_freely
@given(
    status=anything,
    code=anything,
    message=st.text(),
    body=anything,
    reason=anything,
    retry_after=anything | st.datetimes(timezones=st.just(UTC)) | header_words,
)
def error_shapes(**shape: Any) -> None:
    """Whatever an exception carries, it is classified."""
    with in_time():
        error = Exception(shape.pop("message"))
        vars(error).update(shape, status_code=shape["status"], created=datetime.now(UTC))
        info = classify(error)
        assert info.retry_after is None or info.retry_after >= 0


secret_texts = pieces(
    *words(r"""
    password= sk- AKIA eyJ ://u: @host ' " \ token = : { } %3D
    """),
    "api_key: ",
    "Authorization: Bearer ",
    "\n",
    "-----BEGIN PRIVATE KEY-----",
    "-----END PRIVATE KEY-----",
    SECRET,
    "abcdefgh" * 5,
)


@given_freely
@given(text=secret_texts | st.text(), data=anything, before=secret_texts, after=secret_texts)
def redaction(text: str, data: Any, before: str, after: str) -> None:
    """A registered secret is gone wherever it stands; masking again changes nothing; data keeps its shape."""
    with in_time():
        register_secret(SECRET)
        masked = redact(text)
        assert SECRET not in masked
        assert redact(masked) == masked
        assert SECRET not in redact(before + SECRET + after)
        password = redact(f"{before}\npassword=correct-horse-battery\n")
        assert "correct-horse-battery" not in password
        held = redact_data({"password": "correct-horse-battery", "data": data, "text": text + SECRET})
        assert SECRET not in json.dumps(held, default=repr)
        assert held["password"] != "correct-horse-battery"


@given_freely
@given(
    value=anything | st.dictionaries(st.integers() | st.text(max_size=3), anything),
    text=st.text(),
    key=st.text(),
)
def documents(value: Any, text: str, key: str) -> None:
    """What is written is read back equal, or is refused before it is written."""
    with in_time():
        try:
            written = encode(value)
        except (TypeError, ValueError):
            pass
        else:
            assert decode(written, "key") == value
        with suppress(StoreUnavailable):
            decode(text, "key")
        try:
            check_key(key)
        except (TypeError, ValueError):
            return
        end = prefix_end(key)
        assert end is None or end > key + "\U0010fffe"


TARGETS: dict[str, Callable[..., None]] = {
    target.__name__: target
    for target in (
        condition_forms,
        condition_values,
        paths,
        plan_forms,
        plan_texts,
        headers,
        error_shapes,
        redaction,
        documents,
    )
}
