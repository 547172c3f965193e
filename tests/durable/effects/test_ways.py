"""Every way in which one function sends: it is taken at most once, and nothing is unsent in silence.

The ways are in `tests/durable/effects/ways`; docs/effects_ways.md has the table.
"""

from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any, cast

import pytest

from tests.durable.effects.ways import table
from tests.durable.effects.ways.catalogue import ways
from tests.durable.effects.ways.places import Places
from tests.durable.effects.ways.running import Cell, Outcome, cells
from tests.durable.effects.ways.staged import all_tried
from tests.durable.effects.ways.way import Combination, Way

# pytest-timeout's own alarm would keep a deadline from interrupting the main thread. The first test makes all
# calls, which took 95 s beside six busy processes.
pytestmark = pytest.mark.timeout(600, method="thread")


def marks(way: Way, given: Combination) -> Any:
    """`make test` has each way with and without proof, `make test-all` also with a `verify` to ask, and
    `make long` with both where a proof changes nothing."""
    if not given.verify:
        return ()
    both = given.proof and way.proof not in ("one request", "either")
    return pytest.mark.long if both else pytest.mark.slow


CELLS = [
    pytest.param(cell, marks=marks(*cell), id=f"{cell[0].name} [{cell[1].name}]") for cell in cells(ways())
]


@pytest.fixture(scope="module")
def tried(request: pytest.FixtureRequest) -> Iterator[dict[Cell, Future[Outcome]]]:
    """What was chosen, several at a time: they mostly wait."""
    chosen = [
        cast("Cell", item.callspec.params["cell"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
    ]
    places = Places(lambda: request.getfixturevalue("postgres_server_url"))
    if any(way.client == "psycopg" for way, _ in chosen):
        places.receiver_of("psycopg").close()  # the server is started here, not in a thread
    with all_tried(chosen, places) as tried:
        # Between two tests pytest changes what a warning does, which is no business of other threads.
        wait(tried.values(), 500)
        yield tried
    places.close()


@pytest.mark.requirement("004.05")
@pytest.mark.parametrize("cell", CELLS)
def test_it_is_taken_once_or_the_caller_hears_of_it(cell: Cell, tried: dict[Cell, Future[Outcome]]) -> None:
    outcome = tried[cell].result(60)
    assert not outcome.problems, f"{outcome.problems} {outcome.error}"


def test_each_way_is_another_one() -> None:
    names = [way.name for way in ways()]
    assert len(set(names)) == len(names) >= 60


def test_the_page_has_every_way() -> None:
    """A way that was added is in the page once `python -m tests.durable.effects.ways --write` was run."""
    rows = table.PAGE.read_text(encoding="utf-8").splitlines()
    missing = [way.name for way in ways() if not any(row.startswith(table.begins(way)) for row in rows)]
    assert not missing
