"""Pages from a service on its bad day: what the service counts, and a day of seconds in all four ways."""

import json

import pytest

from benchmarks import pages
from benchmarks.pages import DECORATOR, STAMINA, TENACITY, TRANSPORT, Day

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


@pytest.mark.usefixtures("prefect_api")
def test_a_day_of_seconds_in_all_ways(capsys: pytest.CaptureFixture[str]) -> None:
    code = pages.main(["--pages", "400", "--seconds", "4", "--at-once", "20", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [one["way"] for one in told["days"]] == [TENACITY, STAMINA, DECORATOR, TRANSPORT]
    for one in told["days"]:
        assert one["delivered"] == 400, one
        assert one["attempts"] in (None, one["requests"]), one
    # So short a day has few requests to the dead service: who makes fewer may be chance.
    firm = {name: well for name, well in told["kept"].items() if "fewer" not in name}
    assert firm == dict.fromkeys(firm, True)
    assert code == (not all(told["kept"].values()))
