"""Pages from a service on its bad day: what the service counts, and a day of seconds in all four ways."""

import pytest

from benchmarks import pages
from benchmarks.pages import DECORATOR, STAMINA, TENACITY, Day

pytestmark = pytest.mark.slow


def day(way: str, **changes: int) -> Day:
    return Day(**{"way": way, "pages": 9, "delivered": 9, "requests": 20, "dead": 4, "seconds": 1, **changes})


def test_each_promise_can_be_broken() -> None:
    peers = [day(TENACITY), day(STAMINA, dead=3)]
    good = day(DECORATOR, attempts=20, dead=2)
    assert all(pages.promises([*peers, good]).values())
    for changes, broken in (
        ({"delivered": 8}, "all pages came"),
        ({"attempts": 19}, "the totals have the service's own count of requests"),
        ({"dead": 3}, "fewer requests to the dead service than stamina"),
    ):
        kept = pages.promises([*peers, day(DECORATOR, **{"attempts": 20, "dead": 2, **changes})])
        assert [name for name, well in kept.items() if not well] == [f"{DECORATOR}: {broken}"]
