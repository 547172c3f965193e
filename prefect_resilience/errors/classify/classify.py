"""classify: an exception, a Prefect state, an HTTP response or a text -> ErrorInfo.

The first rule with an opinion decides: the rules of the call, then those of the process, then the defaults.
For an unknown exception its `__cause__` is classified, or its `__context__` unless the exception is a
programming error of the handler itself; the last resort is the words in its class's name. For a group the
worst member decides.
"""

from __future__ import annotations

import builtins
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from prefect_resilience.errors.classify.http import WAITING, headers_of, http_finding, status_of
from prefect_resilience.errors.classify.reach import MEMBERS, chain, find, members_of
from prefect_resilience.errors.classify.readers import name_finding, spoken_finding
from prefect_resilience.errors.classify.retry_after import wait_in_text, wait_of
from prefect_resilience.errors.classify.shapes import (
    class_name,
    class_names,
    full_name,
    read,
    read_text,
    state_data,
    state_type,
)
from prefect_resilience.errors.classify.table import codes_of, pattern_of, says, status_in, too_big, words_of
from prefect_resilience.errors.taxonomy import CATEGORY_CODES, ErrorInfo, ErrorKind, Opinion, match_words
from prefect_resilience.errors.taxonomy import ErrorCategory as C

Rule = Callable[[Any], "C | str | ErrorInfo | None"]
"""Classifies an exception: a category, its name, or a whole ErrorInfo; None is no opinion."""

R = TypeVar("R", bound=Rule)


registered: list[Rule] = []
"""The rules of this process, the latest first."""


def register_classifier(rule: Rule) -> None:
    """Apply `rule` before the defaults from now on; the latest rule comes first.

    A rule that returns None has no opinion, and a rule that raises is skipped. Registering a rule twice has
    no effect.

    Example:
        >>> register_classifier(lambda error: "timeout" if "too slow" in str(error) else None)
        >>> str(classify(RuntimeError("too slow")).category)
        'timeout'
    """
    if rule not in registered:
        registered.insert(0, rule)


def classifier(rule: R) -> R:
    """Decorator: registers the function with `register_classifier` and returns it.

    Example:
        >>> @classifier
        ... def locked(error: Exception) -> str | None:
        ...     return "unavailable" if "row is locked" in str(error) else None
        >>> classify(RuntimeError("the row is locked")).retryable
        True
    """
    register_classifier(rule)
    return rule


def ask(error: BaseException, rules: Sequence[Rule]) -> ErrorInfo | Opinion | None:
    """The first opinion of the given rules, then of the registered ones; None if no rule has one."""
    for rule in (*rules, *registered):
        with suppress(Exception):  # a rule is the user's code
            opinion = rule(error)
            if isinstance(opinion, ErrorInfo):
                return opinion
            if isinstance(opinion, str):
                return Opinion(C(opinion.lower()))
    return None


_DEPTH = 20

CLASSIFIED = "__prefect_resilience_info__"
"""The attribute with the classification of an exception that lost a part on its way between processes."""

WORST_FIRST = (ErrorKind.PERMANENT, ErrorKind.RESOURCE, ErrorKind.INFRASTRUCTURE, ErrorKind.TRANSIENT)
"""If several failures are combined, the first kind in this order decides: permanent before transient."""


def classify(error: Any, *, now: float | None = None, rules: Sequence[Rule] = ()) -> ErrorInfo:
    """The classification of an error of any kind; never raises.

    `error` is an exception, a Prefect state, an HTTP response or a text. `now` is in seconds since the epoch
    (default: the wall clock), to convert dates to waits. `rules` come before all others.

    For an exception group the worst member decides: permanent before resource before infrastructure before
    transient, not retryable before retryable, then the longest wait.

    Example:
        >>> found = classify(TimeoutError("no answer"))
        >>> str(found.category), found.code, found.retryable
        ('timeout', 'TIMEOUT', True)
    """
    try:
        return _classify(error, time.time() if now is None else now, tuple(rules), _DEPTH)
    except Exception:  # noqa: BLE001 - `error` may be anything, and the caller is handling a failure
        return ErrorInfo.of(C.UNEXPECTED, class_name(error))


def _classify(error: Any, now: float, rules: tuple[Rule, ...], depth: int) -> ErrorInfo:
    if isinstance(error, BaseException):
        return _of_exception(error, now, rules, depth)
    if isinstance(error, str):
        return _complete(text_finding(error), C.UNEXPECTED.value, error, None)
    if isinstance(error, ErrorInfo):
        return error
    kind = state_type(error)
    if kind is not None:
        return _of_state(error, kind, now, rules, depth)
    if (status := status_of(error)) is not None:
        from http.client import responses

        return _complete(http_finding(error, now), str(status), responses.get(status, ""), None)
    return _complete(None, class_name(error), read_text(error), None)


def _of_exception(error: BaseException, now: float, rules: tuple[Rule, ...], depth: int) -> ErrorInfo:
    """The first known exception of the chain decides; the outermost gives class and text."""
    links = chain(error)
    for link in links:
        opinion = ask(link, rules)
        if isinstance(opinion, ErrorInfo):
            return opinion
        carried = read(link, CLASSIFIED)
        if opinion is None and isinstance(carried, ErrorInfo):
            return carried
        default = find(link, now)
        if opinion is None and default is None and depth > 0 and (members := members_of(link)):
            return _of_group(members, link, now, rules, depth)
        opinion = _merge(opinion, default)
        if opinion is not None:
            causes = list(links)
            if causes or opinion.category is C.SUBTASK:
                opinion = _deeper(opinion, link, causes, now)
            return _finish(opinion, error, link, causes, now)
    for link in chain(error):
        opinion = spoken_finding(link) or name_finding(link)
        if opinion is not None:
            return _finish(opinion, error, link, [*chain(link)][1:], now)
    return _complete(None, class_name(error), read_text(error), error)


def _finish(
    opinion: Opinion, error: BaseException, link: BaseException, causes: list[BaseException], now: float
) -> ErrorInfo:
    """The classification. If the opinion has no wait, it gets that of the link or of a cause."""
    if opinion.category in _ASKING and opinion.retry_after is None:
        status = 429 if opinion.category is C.RATE_LIMIT else None
        waits = (wait_of(source, headers_of(source), status, now) for source in (link, *causes))
        opinion = opinion._replace(retry_after=next((wait for wait in waits if wait is not None), None))
    return _complete(opinion, class_name(link), read_text(error) or read_text(link), error, link)


_ASKING = frozenset({C.RATE_LIMIT, C.UNAVAILABLE, C.SERVER_ERROR, C.CIRCUIT_OPEN, C.INFRASTRUCTURE})


def _merge(opinion: Opinion | None, default: Opinion | None) -> Opinion | None:
    """A rule's category, with the code and the wait of the defaults."""
    if opinion is None or default is None or opinion.category is default.category:
        return default or opinion
    return default._replace(category=opinion.category, kind=None, retryable=None, reason=None)


_VAGUE = frozenset({C.NETWORK, C.AUTH})


def _deeper(opinion: Opinion, link: BaseException, causes: list[BaseException], now: float) -> Opinion:
    """A failed sub-step is classified by its cause or text. So is an error that only its class's name tells
    of: behind a "connection error" there may be a timeout or an invalid certificate, and behind a credential
    error a refused connection."""
    vague = opinion.category in _VAGUE and opinion.code in (None, CATEGORY_CODES.get(opinion.category))
    if not vague and opinion.category is not C.SUBTASK:
        return opinion
    behind = [*chain(link, explicit=True)][1:] if vague else causes
    inner = next((cause for cause in (find(cause, now) for cause in behind) if cause is not None), None)
    if vague:
        return inner if inner is not None and inner.category in _CAUSES else opinion
    inner = inner or text_finding(read_text(link, 8_000))
    if inner is None:
        return opinion
    return inner._replace(
        category=C.SUBTASK,
        kind=inner.kind or inner.category.kind,
        retryable=inner.category.retryable if inner.retryable is None else inner.retryable,
        reason=None,
        details={**(inner.details or {}), **(opinion.details or {})},
    )


_CAUSES = frozenset(category for category in C if category.kind is ErrorKind.TRANSIENT) | {C.AUTH}


def _of_group(
    members: tuple[Any, ...], group: BaseException, now: float, rules: tuple[Rule, ...], depth: int
) -> ErrorInfo:
    infos = [_classify(member, now, rules, depth - 1) for member in members[:MEMBERS]]
    worst = min(infos, key=_badness)
    waits = [info.retry_after for info in infos if info.retry_after is not None]
    categories = {
        word for info in infos for word in (info.category.value, *info.details.get("categories", ()))
    }
    codes = {word for info in infos for word in (info.code, *info.details.get("codes", ()))}
    group_details = {"categories": sorted(categories), "codes": sorted(codes), "members": len(members)}
    details = {**worst.details, **group_details, "group": type(group).__name__}
    return worst.model_copy(update={"details": details, "retry_after": max(waits, default=None)})


def _badness(info: ErrorInfo) -> tuple[int, bool, float]:
    return WORST_FIRST.index(info.kind), info.retryable, -(info.retry_after or 0.0)


def _of_state(state: Any, kind: str, now: float, rules: tuple[Rule, ...], depth: int) -> ErrorInfo:
    message = read_text(read(state, "message") or "")
    name = read_text(read(state, "name") or kind.title())
    ending = _ENDINGS.get(kind) or _ENDINGS.get(name)
    if ending is not None:
        return _complete(ending, "", message, None)
    inner = _inside(state_data(state), now, rules, depth - 1) if kind == "FAILED" and depth > 0 else None
    return inner or _complete(text_finding(message), name, message, None)


_ENDINGS = {
    "CRASHED": Opinion(C.AGENT_CRASH, "CRASHED"),
    **dict.fromkeys(("CANCELLED", "CANCELLING"), Opinion(C.CANCELLED, "CANCELLED")),
    "TimedOut": Opinion(C.TIMEOUT, "TIMEOUT"),
}


def _inside(data: Any, now: float, rules: tuple[Rule, ...], depth: int) -> ErrorInfo | None:
    """The data of a failed state: an exception, a state, a text, or states; the worst state decides."""
    if isinstance(data, BaseException | str) or state_type(data) == "FAILED":
        return _classify(data, now, rules, depth)
    if not isinstance(data, list | tuple):
        return None
    states = cast("Sequence[Any]", data)[:MEMBERS]
    failed = [state for state in states if state_type(state) in ("FAILED", "CRASHED", "CANCELLED")]
    return min((_classify(state, now, rules, depth) for state in failed), key=_badness, default=None)


def _complete(
    opinion: Opinion | None,
    name: str,
    message: str,
    error: BaseException | None,
    link: BaseException | None = None,
) -> ErrorInfo:
    """An ErrorInfo from an opinion: defaults come from its category, the code from `name`."""
    opinion = opinion or Opinion(C.UNEXPECTED)
    details = dict(opinion.details or {})
    if opinion.category.kind is ErrorKind.RESOURCE and "resource" not in details:
        details |= _resource_details(opinion, link, message[:4_000])
    if link is not None and link is not error:
        details["caused_by"] = full_name(link)
    names = "kind", "retryable", "retry_after", "reason"
    fields = {name: value for name in names if (value := getattr(opinion, name)) is not None}
    return ErrorInfo.of(
        opinion.category,
        opinion.code or CATEGORY_CODES.get(opinion.category, name),
        message=message,
        exception_type=None if error is None else full_name(error),
        details=details,
        **fields,
    )


# -- the exhausted resource, its usage and its limit, by type, code and the providers' words


def _resource_details(opinion: Opinion, error: object, message: str) -> dict[str, Any]:
    """`resource`, and `usage` and `limit` if known, for a failure of the kind `resource`."""
    signs = f"{opinion.category} {opinion.code} {' '.join(class_names(error))} {message}"
    resource = match_words(words_of("resource"), signs)
    details: dict[str, Any] = {"resource": "unknown" if resource is None else resource.code}
    patterns = (pattern for pattern, category, _ in words_of("usage") if category is opinion.category)
    matches = (re.search(pattern, message, re.IGNORECASE) for pattern in patterns)
    match = next((match for match in matches if match is not None), None)
    numbers = (
        {name: int(re.sub(r"\D", "", text)) for name, text in match.groupdict().items()} if match else {}
    )
    if "more" in numbers:  # the tokens of the answer, beside those of the prompt
        numbers["usage"] += numbers.pop("more")
    return details | numbers


# -- a text in place of an exception


def text_finding(text: str) -> Opinion | None:
    """An opinion from the text of a failure; None if it has no known words."""
    text = text[:8_000]
    if big := too_big(text):
        return big
    wait = wait_in_text(text)
    if wait is None and says("spent", text):
        return Opinion(C.RESOURCE_EXHAUSTED, "insufficient_quota")
    opinion = _exception_in(text) or status_in("status.of_text", text) or says("race", text)
    opinion = opinion or match_words(words_of("words"), text)
    return opinion._replace(retry_after=wait) if opinion and opinion.category in WAITING else opinion


def _exception_in(text: str) -> Opinion | None:
    """The first exception with a known name in the text, such as in the last line of a traceback."""
    named, bare = codes_of("named"), codes_of("bare")
    for match in pattern_of("exception.in_text").finditer(text):
        head, _, name = match[1].rpartition(".")
        classes = () if head else getattr(getattr(builtins, name, None), "__mro__", ())
        bases = [f"{head.partition('.')[0]}.{name}", *(f"builtins.{cls.__name__}" for cls in classes)]
        category = next((named[base] for base in bases if base in named), None) or bare.get(name)
        if category is not None:
            return Opinion(category, CATEGORY_CODES.get(category, name))
    return None
