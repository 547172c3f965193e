"""The ways: what goes wrong, on the wire, with each client and each shape of function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.durable.effects.ways.mail import END, OPENING, QUIT
from tests.durable.effects.ways.ordinary import ordinary_ways
from tests.durable.effects.ways.steps import DEAD, FINE, NEXT, Answer, At, Busy, Cut, Hold, Refused, redirect
from tests.durable.effects.ways.way import Promise, Proof, Way

BOTH = ("httpx", "httpx async")
ONE = "one request"
SHORT = 0.3
"""Seconds after which a client gives up, or a deadline is over."""
LONG = 1.0
"""Seconds after which the main thread is interrupted: by then the call is at its receiver, not in a lock of
its client's, which the interruption would leave locked."""

_NO_WORD = "no answer came: the outcome is unknown"
_AFTER = "the message was sent before"
_SEVERAL = "several requests left: the error of the last one proves nothing about the others"

# One request: the fault, what the receiver does, what can prove that nothing happened, and why.
FAULTS: tuple[tuple[str, Any, Proof, str], ...] = (
    ("connection refused", Refused(), "one request", "no connection was made"),
    ("cut when it was accepted", Cut("accept"), "never", _NO_WORD),
    ("cut after the headers", Cut("headers"), "never", _NO_WORD),
    ("cut after it was taken", Cut("taken"), "never", _NO_WORD),
    ("400", Answer(400), "one request", "the receiver rejected it"),
    ("404", Answer(404), "one request", "the receiver rejected it"),
    ("408", Answer(408), "never", "the request was cut off half-way"),
    ("409", Answer(409), "never", '409 may mean "I have it already"'),
    ("422", Answer(422), "one request", "the receiver rejected it"),
    ("429", Answer(429), "one request", "the receiver rejected it"),
    (
        "429 with Retry-After",
        Answer(429, headers=(("Retry-After", "1"),)),
        "one request",
        "the receiver rejected it",
    ),
    ("500, taken", Answer(500, taken=True), "never", "a failing server may have done its work"),
    (
        "502, taken",
        Answer(502, taken=True),
        "never",
        "a gateway answers for a server that may have accepted it",
    ),
    ("503, not taken", Answer(503, taken=False), "never", "a failing server may have done its work"),
)
MAIN = ("connection refused", "cut after it was taken", "404", "429", "500, taken")


def ways() -> list[Way]:
    return [
        *one_request(),
        *redirects(),
        *two_requests(),
        *retries_inside(),
        *openai_ways(),
        *more_than_sending(),
        *guards_before(),
        *cancelled(),
        *overdue(),
        *mails(),
        *databases(),
        *ordinary_ways(),
    ]


def one_request() -> Iterator[Way]:
    for client in (*BOTH, "requests", "urllib", "requests in asyncio.to_thread"):
        for fault, step, proof, why in FAULTS:
            if client in BOTH or fault in MAIN:
                yield Way(client, ONE, fault, (step,), proof, why, promise="kept")
    for client in (*BOTH, "requests", "urllib"):
        timeout = Way(client, ONE, "", (), "never", _NO_WORD, promise="kept", read_seconds=SHORT)
        yield replace(timeout, fault="the client's timeout, taken before", steps=(Hold("before"),))
        if client in BOTH:
            later = replace(timeout, fault="the client's timeout, taken later", steps=(Hold("after"),))
            yield replace(later, verify_can_tell=False, why="the receiver still works on it")


def redirects() -> Iterator[Way]:
    places: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
        ("a closed port", DEAD, ()),
        ("a page that answers 429", NEXT, (Answer(429),)),
        ("a page that answers 404", NEXT, (Answer(404),)),
        ("a page that answers 200", NEXT, (FINE,)),
    )
    for client in (*BOTH, "requests", "urllib"):
        for status in (303, 307):
            for there, where, then in places:
                if client == "urllib" and status == 307:  # it raises, and does not follow
                    continue
                fine = then == (FINE,)
                refuted = client == "requests" and then != () and not fine
                yield Way(
                    client,
                    "redirect",
                    f"{status} to {there}",
                    (redirect(status, where), *then),
                    "fine" if fine else "never",
                    "taken" if fine else "the page that answered is not the one that got the message",
                    promise="refuted" if refuted else "none",
                )
    yield Way("urllib", ONE, "307, not followed", (redirect(307, NEXT),), "never", _NO_WORD, promise="kept")


def two_requests() -> Iterator[Way]:
    last: tuple[tuple[str, Any], ...] = (
        ("connection refused", Refused()),
        ("cut", Cut("headers")),
        ("429", Answer(429)),
        ("404", Answer(404)),
    )
    for client in (*BOTH, "requests"):
        for shape in ("POST, then GET", "GET, then POST", "POST, then POST"):
            for fault, step in last if client == "httpx" else last[::2]:
                way = Way(client, shape, f"fine, then {fault}", (FINE, step), "never", _SEVERAL)
                # Of two messages the first one was taken: that is neither Done nor NotDone.
                yield replace(way, verify_can_tell=shape != "POST, then POST")
    for client in BOTH:
        first = Way(client, "GET, then POST", "", (), "one request", "one request left: the GET")
        yield replace(first, fault="connection refused at the GET", steps=(Refused(),))
        yield replace(first, fault="404 at the GET", steps=(Answer(404),))
        no = "the hook sees requests, not their meaning"
        yield replace(first, fault="503 at the GET", steps=(Answer(503),), proof="never", why=no)


def retries_inside() -> Iterator[Way]:
    hidden = "the error of the last attempt hides the first one"
    troubles: tuple[tuple[str, tuple[Any, ...], Proof, str], ...] = (
        ("cut after it was taken, then connection refused", (Cut("taken"), Refused()), "never", hidden),
        ("cut before it was taken, then connection refused", (Cut("headers"), Refused()), "never", hidden),
        ("cut after it was taken, then 429", (Cut("taken"), Answer(429)), "never", hidden),
        (
            "connection refused, then connection refused",
            (Refused(), Refused()),
            "either",
            "no connection was ever made",
        ),
        (
            "cut before it was taken, then fine",
            (Cut("headers"), FINE),
            "fine",
            "the client retried it with success",
        ),
        ("connection refused, then fine", (Refused(), FINE), "fine", "the client retried it with success"),
    )
    for client in (
        "httpx, a transport that retries",
        "httpx async, a transport that retries",
        "httpx, a loop around it",
        "requests, urllib3 retries",
    ):
        for fault, steps, proof, why in troubles:
            yield Way(client, "retries inside", fault, steps, proof, why)


def openai_ways() -> Iterator[Way]:
    several, each = "the SDK made several requests", "the receiver rejected each of several requests"
    for fault, steps, proof, why in (
        ("400", (Answer(400),), "one request", "one request left, and the receiver rejected it"),
        ("429, then fine", (Answer(429), FINE), "fine", "the SDK retried it with success"),
        ("429, then 429", (Answer(429), Answer(429)), "either", each),
        ("500 after it was taken, then connection refused", (Answer(500), Refused()), "never", several),
        ("cut after it was taken, then 429", (Cut("taken"), Answer(429)), "never", several),
        (
            "connection refused, then connection refused",
            (Refused(), Refused()),
            "either",
            "no connection was ever made",
        ),
    ):
        made: Any = proof
        yield Way("openai", "retries inside", fault, steps, made, why)


def more_than_sending() -> Iterator[Way]:
    for client in (*BOTH, "requests"):
        for shape in ("send, then a circuit rejects", "send, then a rate limit rejects"):
            yield Way(client, shape, "fine", (FINE,), "never", _AFTER, promise="kept")
    for client in (*BOTH, "requests", "urllib", "smtplib", "sqlite3", "psycopg"):
        yield Way(client, "send, then compute", "ValueError", (FINE,), "never", _AFTER, promise="kept")


def guards_before() -> Iterator[Way]:
    for client in (*BOTH, "requests"):
        for shape in ("a circuit rejects before", "a bulkhead rejects before"):
            yield Way(client, shape, "open, then fine", (), "always", "the function did not start")
        yield Way(client, "NotSent before", "raised", (), "always", "the function raised `NotSent`")


def cancelled() -> Iterator[Way]:
    held = Way("httpx async", ONE, "", (), "never", "it was cut off", cancelled=True)
    yield replace(held, fault="cancelled, taken before", steps=(Hold("before"),))
    later = replace(held, fault="cancelled, taken later", steps=(Hold("after"),))
    yield replace(later, verify_can_tell=False, why="the receiver still works on it")
    early = replace(held, shape="long work, then send", fault="cancelled before it sent", proof="either")
    yield replace(early, why="nothing had left")
    thread = replace(held, client="requests in asyncio.to_thread", proof="late or doubt")
    thread = replace(thread, why="its thread continues: nothing may be sent meanwhile")
    yield replace(thread, fault="cancelled, taken later", steps=(Hold("after"),))
    yield replace(thread, shape="long work, then send", fault="cancelled before it sent")


def overdue() -> Iterator[Way]:
    waited = "its result is waited for"
    for client in ("httpx", "requests"):
        late = Way(client, ONE, "", (), "late", waited, promise="kept", timeout=SHORT, mode="thread")
        yield replace(late, fault="overdue in a thread, taken later", steps=(Hold("after"),))
        yield replace(late, fault="overdue in a thread, taken before", steps=(Hold("before"),))
        sends = replace(late, shape="long work, then send")
        yield replace(sends, fault="overdue in a thread, sent later")
        refused = replace(sends, fault="overdue in a thread, then 429", steps=(Answer(429),))
        yield replace(refused, proof="one request", why="the late answer rejects it")
        failed = replace(sends, fault="overdue in a thread, then 500, taken", steps=(Answer(500),))
        yield replace(failed, proof="never", why="a failing server may have done its work")
        interrupted = replace(late, timeout=LONG, mode="auto", proof="never", why="it was cut off")
        yield replace(interrupted, fault="interrupted at its deadline, taken before", steps=(Hold("before"),))
    in_loop = Way("httpx async", ONE, "", (), "never", "it was cut off", timeout=SHORT)
    yield replace(in_loop, fault="cut off at its deadline, taken before", steps=(Hold("before"),))
    later = replace(in_loop, fault="cut off at its deadline, taken later", steps=(Hold("after"),))
    yield replace(later, verify_can_tell=False, why="the receiver still works on it")
    thread = Way("requests in asyncio.to_thread", ONE, "", (), "late or doubt", "", "kept", timeout=SHORT)
    thread = replace(thread, why="its thread continues: nothing may be sent meanwhile")
    yield replace(thread, fault="overdue, taken later", steps=(Hold("after"),))
    yield replace(thread, fault="overdue, taken before", steps=(Hold("before"),))
    yield replace(thread, shape="long work, then send", fault="overdue, sent later")


def mails() -> Iterator[Way]:
    no, kept = "the server rejected it", "kept"
    for fault, step, proof, why in (
        ("connection refused", Refused(), "one request", "no connection was made"),
        ("421 when it connects", At(OPENING, 421), "one request", no),
        ("451 to the sender", At("MAIL", 451), "one request", no),
        ("550 to the recipient", At("RCPT", 550), "one request", no),
        ("554 to the mail", At(END, 554), "one request", no),
        ("cut before the mail", At("DATA", 0), "never", _NO_WORD),
        ("cut after it was taken", At(END, 0), "never", _NO_WORD),
        ("taken, then 421 to QUIT", At(QUIT, 421), "never", "the mail was taken before"),
    ):
        made: Any = proof
        promise: Promise = "kept"
        yield Way("smtplib", ONE, fault, (step,), made, why, promise)
    held = Way("smtplib", ONE, "the client's timeout, taken before", (Hold("before"),), "never", _NO_WORD)
    yield replace(held, promise=kept, read_seconds=SHORT)


def databases() -> Iterator[Way]:
    locked = "the database reports that it did nothing"
    yield Way("sqlite3", ONE, "locked", (Busy(),), "either", locked, promise="kept")
    for fault, step, proof, why in (
        ("connection refused", Refused(), "either", "no connection was made"),
        ("cut at the INSERT", Cut("headers"), "never", _NO_WORD),
        ("cut at the COMMIT, committed", Cut("taken"), "never", _NO_WORD),
    ):
        made: Any = proof
        yield Way("psycopg", ONE, fault, (step,), made, why, promise="kept")
