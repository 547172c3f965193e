"""The default rules for one exception, without its causes: eight readers, the most exact first.

What an error carries comes before what it is called. A reader knows no library: what it needs of one is in
`table.txt`.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, cast

from pydantic_core import to_jsonable_python

from prefect_resilience.base.text import Regex
from prefect_resilience.errors.classify.http import aws_finding, http_finding, rpc_finding
from prefect_resilience.errors.classify.retry_after import wait_of_attributes
from prefect_resilience.errors.classify.shapes import as_number, class_names, is_bare, read_text, value_at
from prefect_resilience.errors.classify.table import (
    Codes,
    TableBlock,
    blocks,
    codes_of,
    places_of,
    says,
    status_category,
    status_in,
    words_of,
)
from prefect_resilience.errors.taxonomy import (
    DEADLINE,
    ErrorKind,
    FailureReason,
    Look,
    Opinion,
    match_code,
    match_words,
)
from prefect_resilience.errors.taxonomy import ErrorCategory as C

# Raised by mistake: their message and their name never make them retryable.
MISTAKES = (
    *(TypeError, AttributeError, NameError, LookupError, ArithmeticError, AssertionError, ImportError),
    *(NotImplementedError, ValueError, SyntaxError, StopIteration, StopAsyncIteration, RecursionError),
)


# -- by its library's block of the table


def _by_library(error: BaseException, names: tuple[str, ...], now: float) -> Opinion | None:
    """By the nearest class that has a block in the table or a rule of its own, unless a nearer one is known
    by name. An opinion without category stands for `else -`."""
    libraries, named = blocks(), codes_of("named")
    for name in names:
        rule, block = OWN.get(name), libraries.get(name)
        if rule is None and block is None and name in named:
            return None
        opinion = rule(error, now) if rule else _by_block(block, error, now) if block else None
        if opinion is not None:
            return opinion
    return None


def _by_block(block: TableBlock, error: BaseException, now: float) -> Opinion | None:
    for step in block.steps:
        if isinstance(step, Codes):
            opinion = match_code(step.categories, *_values(step, error), own=block.shows_codes)
        elif isinstance(step, list):
            opinion = match_words(step, read_text(error, 4_000))
        elif isinstance(step, str):
            opinion = _READERS[step](error, now)
        elif step is None:
            return _NOTHING
        else:
            opinion = step
        if opinion is not None:
            details = {**(opinion.details or {}), **_details(block, error)}
            return opinion._replace(code=_code_shown(opinion.code, block, error), details=details or None)
    return None


_MOST, _LONGEST = 100, 2_000


def _details(block: TableBlock, error: BaseException) -> dict[str, Any]:
    """The attributes that the details of the error keep; long texts and lists are cut."""
    details: dict[str, Any] = {}
    for name, attribute, is_long in block.details:
        value = value_at(error, attribute)
        if is_long and len(text := read_text(value)) > _LONGEST:
            value = text[: _LONGEST - 1] + "…"
        elif not is_long and isinstance(value, list | tuple):
            value = cast("list[Any]", value)[:_MOST]
        if value is not None:
            details[name] = value if isinstance(value, str | int | float) else _plain(value)
    return details


def _plain(value: Any) -> Any:
    with suppress(Exception):  # it may contain itself, or raise anything
        return to_jsonable_python(value, bytes_mode="base64", fallback=read_text)
    return read_text(value)


def _code_shown(code: str | None, block: TableBlock, error: BaseException) -> str | None:
    """The code that a person looks for: as the text has it, `ORA-00060`; for words the error's number."""
    for step in block.steps:
        values = list(_values(step, error)) if code is None and isinstance(step, Codes) else []
        if any(as_number(value) is not None for value in values):
            return next(f"{number:.0f}" for value in values if (number := as_number(value)) is not None)
        for pattern in step.patterns if code and isinstance(step, Codes) else ():
            for match in pattern.finditer(read_text(error, 2_000)):
                if code in match.groups():
                    return match[1]
    return code


_NOTHING = Opinion(C.UNEXPECTED)
"""The class tells nothing: its cause is asked."""


def _values(codes: Codes, error: BaseException) -> Iterator[object]:
    """The codes of an error, from the places where its library has them and out of its text."""
    for place in codes.places:
        value = value_at(error, place)
        if isinstance(value, Mapping | list | tuple):
            value = _worst(cast("Mapping[object, object] | list[object]", value))
        shown = str(value) if isinstance(value, bool) else value
        yield from (shown.name, shown.value) if isinstance(shown, Enum) else [shown]
    text = read_text(error, 2_000) if codes.patterns else ""
    for pattern in codes.patterns:
        for match in list(pattern.finditer(text))[:20]:
            yield from reversed(match.groups())


def _worst(replies: Mapping[object, object] | list[object]) -> float | None:
    """The largest of several codes, as SMTP has one for each recipient: the worst decides."""
    parts = replies.values() if isinstance(replies, Mapping) else replies
    codes = (as_number(value_at(reply, "0")) or as_number(value_at(reply, "code")) for reply in parts)
    return max((code for code in codes if code is not None), default=None)


def _labels_finding(error: object, now: float) -> Opinion | None:
    """The labels of MongoDB's driver that ask for a retry."""
    has_label = getattr(error, "has_error_label", None)
    labels = ("TransientTransactionError", "RetryableWriteError", "UnknownTransactionCommitResult")
    if callable(has_label) and any(has_label(label) is True for label in labels):
        number = value_at(error, "code")
        return Opinion(C.UNAVAILABLE, None if number is None else str(number))
    return None


def _by_pep_249(error: object) -> Opinion | None:
    """By the classes that each database driver has."""
    category = codes_of("pep249").get(type(error).__name__)
    return None if category is None else Opinion(category)


# -- exceptions of this package, of Prefect and of processes, which carry more than a code


def _by_exit_code(name: str, category: C, sign: int = -1) -> Look:
    """A rule: a process that exited has this category; a process that a signal ended is an `agent_crash`."""

    def look(error: object, now: float) -> Opinion:
        code = as_number(value_at(error, name))
        if code is None or code * sign <= 0:
            return Opinion(category, None if code is None else f"EXIT_{code:.0f}")
        name_of_signal = next((entry.name for entry in signal.Signals if entry == abs(code)), None)
        return Opinion(C.AGENT_CRASH, name_of_signal or f"SIGNAL_{abs(code):.0f}")

    return look


def _by_reason(error: object, now: float) -> Opinion:
    """A TaskFailure. A context matching failure is retryable: the next attempt may match better."""
    reason = FailureReason(str(value_at(error, "reason")))
    again = True if reason is FailureReason.CONTEXT_MATCHING_FAILURE else None
    category, details = codes_of("reasons")[reason.value], cast("dict[str, Any]", value_at(error, "details"))
    return Opinion(category, reason.value, details=details, retryable=again, reason=reason)


def _by_state(error: object, now: float) -> Opinion:
    from prefect_resilience.errors.classify.classify import classify

    info = classify(value_at(error, "state"), now=now)
    about = info.model_dump(include={"retry_after", "details", "kind", "retryable", "reason"})
    return Opinion(info.category, info.code, **about)


OWN: dict[str, Look] = {
    "subprocess.CalledProcessError": _by_exit_code("returncode", C.TOOL_ERROR),
    "xml.ParseError": lambda error, now: Opinion(C.VALIDATION, reason=FailureReason.XML_VALIDATION_FAILURE),
    "prefect.TerminationSignal": _by_exit_code("signal", C.AGENT_CRASH, sign=1),
    # The run was not resumed in time. It stays paused, so another attempt would fail at once.
    "prefect.FlowPauseTimeout": lambda error, now: Opinion(
        C.TIMEOUT, "TIMEOUT", kind=ErrorKind.PERMANENT, retryable=False
    ),
    "prefect_resilience.DeadlineExceeded": lambda error, now: Opinion(
        C.TIMEOUT, "DEADLINE_EXCEEDED", details={DEADLINE: value_at(error, "set_at")}, retryable=False
    ),
    "prefect_resilience.ProcessDied": _by_exit_code("exit_code", C.AGENT_CRASH),
    "prefect_resilience.StateReturned": _by_state,
    "prefect_resilience.TaskFailure": _by_reason,
    "prefect_resilience.StreamCut": lambda error, now: cast("Opinion | None", value_at(error, "found")),
}


# -- by what any class may carry


def _by_declaration(error: object, now: float) -> Opinion | None:
    """The category that the class declares: `error_category = "tool_error"`."""
    declared = value_at(error, "error_category")
    return next((Opinion(category) for category in C if category.value == declared), None)


_SQLSTATE = Regex(r"(?=.*\d)[0-9A-Z]{5}")


def sqlstate_finding(error: object, now: float) -> Opinion | None:
    """By SQLSTATE, wherever the driver has it."""
    states = (value_at(error, place) for place in places_of("sqlstate"))
    state = next((state for state in states if isinstance(state, str) and _SQLSTATE.fullmatch(state)), None)
    if state is None:
        return None
    if state == "57014":  # cancelled, by the server's statement_timeout or by a person
        return Opinion(C.TIMEOUT if "timeout" in read_text(error, 2_000) else C.CANCELLED, state)
    return match_code(codes_of("sqlstate"), state, own=True)


_ERRNO_IN_MESSAGE = Regex(r"(?:\[Errno|\bos error|\bOs \{ code:) ?(-?\d{1,5})\b")


def _errno_finding(error: object, now: float) -> Opinion | None:
    """By the number of the operating system; the code is its name, such as ENOSPC. In the message, too:
    a client may have kept only the text of the OSError."""
    number = value_at(error, "errno") if isinstance(error, OSError) else None
    if not isinstance(number, int) and not isinstance(error, MISTAKES):
        match = _ERRNO_IN_MESSAGE.search(read_text(error, 4_000))
        number = int(match[1]) if match else None
    return match_code(codes_of("errno"), errno.errorcode.get(number) if isinstance(number, int) else None)


def _by_text(error: object, now: float) -> Opinion | None:
    """For an exception that only quotes another system, as dbt quotes a database's error."""
    from prefect_resilience.errors.classify.classify import text_finding

    return text_finding(read_text(error, 8_000)) or _by_pep_249(error)


def _status_in_message(error: object) -> Opinion | None:
    return None if isinstance(error, MISTAKES) else status_in("status.in_message", read_text(error, 2_000))


_READERS: dict[str, Look] = {
    "aws": aws_finding,
    "http": http_finding,
    "labels": _labels_finding,
    "race": lambda error, now: says("race", read_text(error, 4_000)),
    "sqlstate": sqlstate_finding,
    "text": _by_text,
}
_BY_SHAPE = (_by_declaration, rpc_finding, http_finding, sqlstate_finding, _errno_finding)


def find(error: BaseException, now: float) -> Opinion | None:
    """The opinion of the default rules on one exception; None means no opinion.

    The order: its library's block, a declared `error_category`, a status of gRPC or HTTP, SQLSTATE, an error
    of the operating system, what it says of a retry, the names of its classes, a status in its message. A
    bare exception of Python has nothing but its class and its message.
    """
    names = class_names(error)
    opinion = _by_library(error, names, now)
    if opinion is not None:
        return None if opinion is _NOTHING else opinion
    if is_bare(error):
        return _by_known_name(error, names) or _errno_finding(error, now) or _status_in_message(error)
    opinions = (reader(error, now) for reader in _BY_SHAPE)
    opinion = next((opinion for opinion in opinions if opinion is not None), None)
    opinion = opinion or _retriable(error, _by_known_name(error, names)) or _status_in_message(error)
    if opinion is not None and opinion.category not in (C.INVALID, C.SUBTASK):
        return opinion
    return _too_big(error, names) or opinion or _asks_for_a_wait(error, now)


_RETRIABLE = ("retriable", "retryable", "is_retryable", "is_retriable", "should_retry")


def _retriable(error: BaseException, named: Opinion | None) -> Opinion | None:
    """What the error itself says of a retry is more exact than its name."""
    if named is not None and named.category.retryable:
        return named
    values = [value_at(source, name) for source in (error, value_at(error, "args")) for name in _RETRIABLE]
    if not any(value is True for value in values):
        return named
    spoken, name = spoken_finding(error), value_at(error, "args.name")  # of librdkafka's code
    if spoken is not None and spoken.category.retryable:
        return spoken
    return Opinion(C.UNAVAILABLE, name if isinstance(name, str) else None)


_BY_ITS_NAME = frozenset({C.OVERFLOW, C.RESOURCE_EXHAUSTED})


def _too_big(error: BaseException, names: tuple[str, ...]) -> Opinion | None:
    """A class with a name that means that the work is too big, whatever its status is."""
    bare = (name.rpartition(".")[2] for name in names)
    if any(codes_of("bare").get(name) is C.OVERFLOW for name in bare):
        return Opinion(C.OVERFLOW, "context_length_exceeded")
    spoken = spoken_finding(error)
    return spoken if spoken is not None and spoken.category in _BY_ITS_NAME else None


def _asks_for_a_wait(error: object, now: float) -> Opinion | None:
    """An unknown exception that has a `retry_after`, such as a chat client's flood control."""
    wait = wait_of_attributes(error, now, "waits.asked")
    return None if wait is None else Opinion(C.RATE_LIMIT, retry_after=wait)


# -- by the names of its classes


def name_finding(error: BaseException) -> Opinion | None:
    """What its class says of an error whose block tells nothing, after the whole chain of causes."""
    opinion = _by_known_name(error, class_names(error))
    return opinion and (_by_pep_249(error) or opinion)


def _by_known_name(error: BaseException, names: tuple[str, ...]) -> Opinion | None:
    """By the nearest class that is known. The words of a nearer class's own name correct it: an
    AuthenticationError whose base is a connection error is no matter of the network."""
    packaged, anywhere = codes_of("named"), codes_of("bare")
    nearest = next((name for name in names if name in packaged), None)
    if nearest is None:
        bare = (name.rpartition(".")[2] for name in names)
        category = next((anywhere[name] for name in bare if name in anywhere), None)
    else:
        category = packaged[nearest]
        nearer = _spoken(type(error).__mro__[: names.index(nearest)]) if category.retryable else None
        if nearer is not None and not nearer.category.retryable:
            return nearer
    if category is C.NETWORK and "CERTIFICATE_VERIFY_FAILED" in read_text(error, 4_000):
        # The peer's certificate is invalid; a retry does not change that.
        return Opinion(C.AUTH, "CERTIFICATE_VERIFY_FAILED")
    return None if category is None else Opinion(category)


def spoken_finding(error: BaseException) -> Opinion | None:
    """An opinion from the words of a class's name and of its bases', the nearest first: the last resort,
    after the whole chain of causes. A ValueError, a TypeError or the like reports a mistake, so its name
    never makes it retryable."""
    opinion = _spoken(type(error).__mro__)
    is_mistake = opinion is not None and opinion.category.retryable and isinstance(error, MISTAKES)
    return None if is_mistake else opinion


def _spoken(classes: Iterable[type]) -> Opinion | None:
    for cls in classes:
        if cls.__module__ != "builtins" and (opinion := _opinion(in_words(cls.__name__))) is not None:
            return opinion
    return None


def _opinion(name: str) -> Opinion | None:
    """What the words of a name say; the first class that says something decides."""
    status = re.search(r"(?i)\bhttp_?(\d{3})", name)
    if status is not None:
        category = status_category(int(status[1]))
        return None if category is None else Opinion(category, status[1])
    for words, category, code in words_of("spoken"):  # whole words of a name, not parts
        if re.search(f"(?:^|_)(?:{words})(?![a-z])", name):
            return Opinion(category, code)
    return None


def in_words(name: str) -> str:
    """A class's name with `_` between its words: `HTTPTimeoutError` -> `HTTP_Timeout_Error`.

    Example:
        >>> in_words("LDAPSocketReceiveError")
        'LDAP_Socket_Receive_Error'
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name[:100])
    return "_".join(word[:1].upper() + word[1:] for word in words.split("_") if word)
