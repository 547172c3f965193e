"""Mistakes in the options of limits and hedges: each is one sentence that says what to write."""

import asyncio
import time

import pytest

from prefect_resilience import AdaptiveLimit, Bulkhead, Hedge, RateLimit, Timeout, resilient
from prefect_resilience.errors.exceptions import ConfigurationError


async def an_async_function():
    return 1


def generator():
    yield 1


MISTAKES = [
    (lambda: Bulkhead(), "Bulkhead needs max_concurrent: write Bulkhead(max_concurrent=...)"),
    (lambda: Bulkhead(0), "max_concurrent=0): write at least 1"),
    (lambda: Bulkhead(2.5), "max_concurrent=2.5): write a whole number"),
    (lambda: Bulkhead(2, max_wait=-1), "Bulkhead(max_wait=-1): write at least 0"),
    (
        lambda: Bulkhead(2, max_wait="soon"),
        "Bulkhead(max_wait): 'soon' is not a duration: write 30 (seconds)",
    ),
    (lambda: Bulkhead(2, maxwait=1), "no option 'maxwait'; did you mean 'max_wait'?"),
    (lambda: Bulkhead(2, name="{"), "the braces in the limit name '{' do not match"),
    (lambda: Bulkhead(2, name="{}"), "is not a parameter"),
    (lambda: Bulkhead(2, name=" "), "a limit needs a name"),
    (lambda: Bulkhead(2, name="a:{b}").call(int), "is a template: call .bind({'b': ...}) first"),
    (lambda: Bulkhead(2, name="a:{b}").bind({}), "unknown parameter 'b'"),
    (lambda: Bulkhead(2, name="a:{b}")(lambda: 1), "has no parameter 'b'"),
    (lambda: Bulkhead(2).call(an_async_function), "is async: write `await limit.acall(...)`"),
    (lambda: Bulkhead(2).call(lambda: an_async_function()), "is async: write `await limit.acall(...)`"),
    (lambda: RateLimit(), "RateLimit needs calls: write RateLimit(calls=...)"),
    (lambda: RateLimit(0), "calls=0): write at least 1"),
    (lambda: RateLimit(5, per=0), "write at least 0.001"),
    (lambda: RateLimit(5, per=float("nan")), "nan is not a duration"),
    (lambda: RateLimit(5, name="a:{b}").call(int), "is a template: call .bind({'b': ...}) first"),
    (lambda: Hedge(), "Hedge needs after: write Hedge(after=...)"),
    (lambda: Hedge(after=-1), "Hedge(after=-1): write at least 0"),
    (lambda: Hedge(1, max=0), "Hedge(max=0): write at least 1"),
    (lambda: Hedge(1, maximum=2), "Hedge has no option 'maximum'; did you mean 'max'?"),
    (lambda: Hedge(1).call(asyncio.sleep, 0), "sleep is async: write `await Hedge(...).acall(...)`"),
    (
        lambda: resilient(hedge=Hedge(1))(generator),
        "hedge= needs a function with one result, but 'generator' is a generator",
    ),
    (
        lambda: resilient(hedge=Hedge(1), timeout=Timeout(1, mode="process"))(time.sleep),
        "hedge= cannot repeat a call in a child process",
    ),
    (
        lambda: resilient(hedge=Hedge(1), effect="external")(asyncio.sleep),
        "hedge= makes a slow call a second time, which effect='external' forbids",
    ),
    (lambda: AdaptiveLimit(initial=0), "AdaptiveLimit(initial=0): write at least 1"),
    (lambda: AdaptiveLimit(minimum=30), "(initial=20, minimum=30, maximum=200): write minimum <= initial"),
    (lambda: AdaptiveLimit(name="llm"), "has no option 'name'; write one of initial, max_wait, maximum, min"),
    (lambda: AdaptiveLimit(max_concurrent=3), "AdaptiveLimit has no option 'max_concurrent'"),
]


@pytest.mark.parametrize(("make", "says"), MISTAKES)
def test_a_mistake_is_one_sentence(make, says):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
