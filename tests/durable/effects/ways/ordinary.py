"""The ways of ordinary code that sends more often, or less, than it looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.durable.effects.ways.ordinary_shapes import AWAITABLES, BESIDES, CHANGES, FORKS, STATES
from tests.durable.effects.ways.steps import FINE, Answer, Cut, Hold
from tests.durable.effects.ways.way import Way

BOTH = ("httpx", "httpx async")
_NO_WORD = "no answer came: the outcome is unknown"


def ordinary_ways() -> Iterator[Way]:
    yield from changed_arguments()
    yield from lapsed_owners()
    yield from besides()
    yield from cached()
    yield from awaitables()
    yield from states()


def changed_arguments() -> Iterator[Way]:
    """The later pass of each gets the argument as the earlier calls left it."""
    for client in (*BOTH, "requests"):
        for shape in CHANGES:
            way = Way(client, shape, "", (), "never", _NO_WORD, promise="kept")
            yield replace(way, fault="cut after it was taken", steps=(Cut("taken"),))
            if client == "httpx":
                yield replace(way, fault="cut after the headers", steps=(Cut("headers"),))
                yield replace(way, fault="fine", steps=(FINE,), proof="fine", why="taken")
            refused = replace(way, fault="429", steps=(Answer(429),), proof="one request")
            yield replace(refused, why="the receiver rejected it")


def lapsed_owners() -> Iterator[Way]:
    """A second pass asks for the effect meanwhile; it gets no permission to send, and asks no `verify`."""
    for client in ("httpx", "requests"):
        way = Way(client, "one request", "", (), "fine", "its process lives, so its call is waited for")
        way = replace(way, promise="kept", staged="lease lapses")
        yield replace(way, fault="hangs while its lease lapses, taken before", steps=(Hold("before"),))
        yield replace(way, fault="hangs while its lease lapses, taken later", steps=(Hold("after"),))


def besides() -> Iterator[Way]:
    for client in BOTH:
        for shape in BESIDES:
            way = Way(client, shape, "429", (Answer(429),), "never", "something else left before the request")
            yield replace(way, verify_can_tell=False, forks=shape in FORKS)
        scratch = Way(client, "write a temporary file, then POST", "429", (Answer(429),), "one request", "")
        yield replace(scratch, why="the receiver rejected it, and nothing else left")


def cached() -> Iterator[Way]:
    why = "a cache would answer for another effect"
    for client in BOTH:
        for shape in ("has a cache_policy", "gets a cache_policy by with_options"):
            yield Way(
                client, shape, "decorated", (FINE,), "refused", why, staged="cached", refusal="has both"
            )


def awaitables() -> Iterator[Way]:
    for shape in AWAITABLES:
        way = Way("httpx async", shape, "", (), "refused", "nothing can await it", has_loop=False)
        yield replace(way, fault="no event loop", steps=(FINE,), refusal="declare it `async def`")
        looped = replace(way, has_loop=True)
        yield replace(looped, fault="fine", steps=(FINE,), proof="fine", why="it is awaited")
        refused = replace(looped, fault="429", steps=(Answer(429),), proof="one request")
        yield replace(refused, why="it is awaited, and the receiver rejected it")
        cut = replace(looped, fault="cut after it was taken", steps=(Cut("taken"),), proof="never")
        yield replace(cut, why=_NO_WORD)


def states() -> Iterator[Way]:
    for client in (*BOTH, "requests"):
        for shape in STATES:
            way = Way(client, shape, "", (), "never", _NO_WORD, promise="kept")
            yield replace(way, fault="cut after it was taken", steps=(Cut("taken"),))
            if shape == "returns Failed":
                rejected = replace(way, fault="429", steps=(Answer(429),), proof="one request")
                yield replace(rejected, why="the receiver rejected it")
                failed = replace(way, fault="500, taken", steps=(Answer(500, taken=True),))
                yield replace(failed, why="a failing server may have done its work")
