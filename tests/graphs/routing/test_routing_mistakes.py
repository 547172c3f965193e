"""What cannot be meant is refused where it is written, in one sentence."""

import pytest
from prefect import flow, task

from prefect_resilience import (
    ConfigurationError,
    failed,
    gather,
    iterate,
    on_error,
    otherwise,
    path,
    quorum,
    route,
    when,
)

pytestmark = pytest.mark.api


def takes(found):
    return found


async def later(found):
    return found


@task
def as_task(found, limit):
    return found


HIGH = path("x") > 1


class Awaited:
    def __await__(self):
        yield


def chunks():
    yield 1


MISTAKES = {
    "when(True, ...) is a plain bool, decided before the route runs": lambda: when(3 > 1, takes),
    "when(...) needs a condition, not path('x')": lambda: when(path("x"), takes),
    "when(...) needs a function or a task to run, not 'report'": lambda: when(HIGH, "report"),
    "for a constant write lambda: 3": lambda: otherwise(3),
    "when(...): wrong arguments for 'takes': too many positional arguments": lambda: when(HIGH, takes, 1, 2),
    "when(...): wrong arguments for 'as_task': missing a required argument: 'limit'": lambda: when(
        HIGH, as_task
    ),
    "when(...): wrong arguments for 'takes': missing a required argument: 'found'": lambda: when(
        failed(), takes
    ),
    "got an unexpected keyword argument 'y'": lambda: otherwise(takes, y=1),
    "route(...) has no branch": lambda: route(1),
    "route(...) takes when(...) and otherwise(...), not <function takes": lambda: route(1, takes),
    "otherwise(takes) must be the last branch": lambda: route(1, otherwise(takes), when(HIGH, takes)),
    "route(...) received an awaitable": lambda: route(later(1), otherwise(takes)),
    "on_error(...) received an awaitable": lambda: on_error(Awaited(), lambda: 2),
    "route works only in a flow run: call it while a @flow is running": lambda: route(1, otherwise(takes)),
    "on_error(...): wrong arguments for 'takes': missing a required argument: 'found'": lambda: on_error(
        1, takes
    ),
    "on_error(when=...): True does not name an error": lambda: on_error(1, lambda: 2, when=True),
    "unknown error category 'ratelimit'; did you mean 'rate_limit'?": lambda: on_error(
        1, lambda: 2, when="ratelimit"
    ),
    "on_error(...): wrong arguments for 'takes'": lambda: on_error(1, quorum(takes, lambda: 1)),
    "on_error(...): 'chunks' is a generator: return a list instead": lambda: on_error(1, chunks),
    "quorum(...) needs handlers": quorum,
    "quorum(...) needs functions or tasks, not 1": lambda: quorum(takes, 1),
    "quorum(need=3) with 2 handlers: write a number from 1 to 2": lambda: quorum(takes, takes, need=3),
    "quorum(key='answer') must be a function": lambda: quorum(takes, takes, key="answer"),
    "gather(...) takes a list of futures, states or values, not 3": lambda: gather(3),
    "gather(allow_failures=-1)": lambda: gather([], -1),
    "gather(allow_failures=1.5): write a share from 0.0 to 1.0": lambda: gather([], 1.5),
    "gather(...) received an awaitable": lambda: gather([later(1)]),
    "iterate(until=True)": lambda: iterate(takes, 3 > 1, 3),
    "iterate(progress='score'): write a function": lambda: iterate(takes, HIGH, 3, "score"),
    "iterate(max_rounds=0): write a whole number of at least 1": lambda: iterate(takes, HIGH, 0),
    "iterate(step=later) is async: write await aiterate(...)": lambda: iterate(later, HIGH, 3),
    "iterate(until=later) is async": lambda: iterate(takes, later, 3),
    "iterate(step): wrong arguments for 'as_task'": lambda: iterate(as_task, HIGH, 3),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_is_one_sentence(sentence):
    with pytest.raises(ConfigurationError) as caught:
        MISTAKES[sentence]()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_branch_that_needs_a_value_is_refused_when_there_is_none():
    """Whether it can be called is known only once the upstream has failed."""

    @flow
    def scenario():
        routed = route(ValueError("bad"), when(failed() | (path("x") > 1), takes))
        with pytest.raises(ConfigurationError, match="wrong arguments for 'takes': missing"):
            routed.result()

    scenario()
