"""What can be written as a timeout, and what is said when it cannot."""

import functools
import json
import math
import pickle
from datetime import timedelta

import pytest
from pydantic import BaseModel, ValidationError

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.timeouts.timeout import DEFAULT_OPERATIONS, Timeout


def plain():
    return 1


async def plain_async():
    return 1


def stream():
    yield 1


async def astream():
    yield 1


class Streams:
    def __call__(self):
        yield 1


def test_the_forms_mean_the_same():
    thirty = Timeout(total=30)
    assert Timeout(30) == thirty
    assert Timeout(timedelta(seconds=30)) == thirty
    assert Timeout(timeout_ms=30_000) == thirty
    assert Timeout.model_validate(30) == thirty
    assert Timeout.model_validate_json('{"total": 30, "mode": "auto"}') == thirty
    assert Timeout.model_validate_json('{"timeout_ms": 30000}') == thirty
    assert (
        Timeout.of(30) == Timeout.of("web-fetch") == Timeout.of({"total": 30}) == Timeout.of(thirty) == thirty
    )
    assert Timeout.of(None) is None


def test_it_goes_through_json_pickle_and_a_set():
    timeout = Timeout(30, idle=5)
    assert Timeout(30, 5) == timeout
    assert json.loads(timeout.model_dump_json()) == {"total": 30, "idle": 5, "mode": "auto"}
    assert Timeout.model_validate_json(timeout.model_dump_json()) == timeout
    assert pickle.loads(pickle.dumps(timeout)) == timeout
    assert hash(timeout) == hash(Timeout(30, idle=5))
    with pytest.raises(ValidationError, match="frozen"):
        timeout.total = 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, r"write Timeout\(30\)"),
        ({"total": 0}, "0 is not a duration above 0"),
        ({"total": math.nan}, "nan is not a duration above 0"),
        ({"total": math.inf}, "timeout=None"),
        ({"idle": 0}, r"Timeout\(idle\): 0 is not a duration above 0"),
        ({"total": True}, "True is not a duration"),
        ({"total": "soon"}, "'soon' is not a duration"),
        ({"total": 1, "mode": "fork"}, "unknown value 'fork'; write one of auto, process, thread"),
        ({"total": 1, "timeout_ms": 1}, "one of them"),
        ({"seconds": 5}, "no option 'seconds'"),
        ({"total": timedelta(0)}, "above 0"),
    ],
)
def test_a_bad_value_is_refused_in_one_sentence(fields, says):
    with pytest.raises(ConfigurationError, match=says) as constructed:
        Timeout(**fields)
    assert "\n" not in str(constructed.value)
    with pytest.raises(ConfigurationError, match=says):
        Timeout.of(fields)

    class Node(BaseModel):
        timeout: Timeout

    with pytest.raises(ValidationError, match=says) as nested:
        Node.model_validate({"timeout": fields})
    assert nested.value.errors()[0]["loc"][0] == "timeout"


@pytest.mark.requirement("003.15")
def test_the_seeds_operations():
    assert {name: Timeout.of(name).total for name in DEFAULT_OPERATIONS} == {
        "default": 30,
        "llm-call": 60,
        "tool-execution": 120,
        "file-read": 5,
        "web-fetch": 30,
    }
    assert Timeout.of("mine", {"mine": 2.5}).total == 2.5
    with pytest.raises(ConfigurationError, match="did you mean 'llm-call'"):
        Timeout.of("llm_call")
    with pytest.raises(ConfigurationError, match="write one of default, file-read"):
        Timeout.of("zzzz")
    with pytest.raises(ConfigurationError, match="cannot be a list"):
        Timeout.of([3])


@pytest.mark.parametrize("fn", [plain, plain_async, functools.partial(plain)])
def test_idle_needs_a_generator(fn):
    Timeout(3).check_for(fn)
    Timeout(3, mode="process").check_for(fn)
    with pytest.raises(ConfigurationError, match=r"not a generator.*Timeout\(total"):
        Timeout(3, idle=1).check_for(fn)


@pytest.mark.parametrize("fn", [stream, astream, functools.partial(stream), Streams()])
def test_a_generator_cannot_go_to_a_process(fn):
    Timeout(3, idle=1).check_for(fn)
    Timeout(3).check_for(fn)
    with pytest.raises(ConfigurationError, match="cannot run with mode"):
        Timeout(3, mode="process").check_for(fn)
