"""Which resource a failure says is used up, and how much of it: by type, code and the providers' words."""

from __future__ import annotations

import re
from typing import Any

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.shapes import as_number, class_names, read
from prefect_resilience.errors.info import Finding
from prefect_resilience.errors.taxonomy import ErrorCategory as C

_NUMBER = r"(\d[\d,_.]{0,15}\d|\d)"
# Usage and limit, as OpenAI, Anthropic, Google and their like write them.
_USAGE_AND_LIMIT = tuple(
    (Regex(pattern, re.IGNORECASE | re.DOTALL), order)
    for pattern, order in (
        (rf"{_NUMBER} tokens? > {_NUMBER}", "ul"),
        (
            rf"maximum context length is {_NUMBER}.{{0,200}}?(?:resulted in|requested(?: about)?) {_NUMBER}",
            "lu",
        ),
        (rf"input token count.{{0,20}}?{_NUMBER}.{{0,80}}?(?:allowed|tokens)\D{{0,20}}{_NUMBER}", "ul"),
        (rf"exceed context limit: {_NUMBER} \+ {_NUMBER} > {_NUMBER}", "uul"),
        (rf"limit[: ]{{1,3}}{_NUMBER}, requested[: ]{{1,3}}{_NUMBER}", "lu"),
        (rf"maximum context length is {_NUMBER}", "l"),
    )
)
_BY_CODE = {
    "ENOSPC": "disk",
    "EDQUOT": "disk",
    "EMFILE": "files",
    "ENFILE": "files",
    "ENOMEM": "memory",
    "insufficient_quota": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_error": "quota",
}
_BY_CLASS = {
    "builtins.MemoryError": "memory",
    "redis.OutOfMemoryError": "memory",
    "openai.LengthFinishReasonError": "output",
    "prefect_resilience.RoundsExhausted": "turns",
}
_BY_WORDS = (
    (Regex(r"request_limit|recursion limit|max(?:imum)?[ _](?:turns|iterations|rounds)", re.I), "turns"),
    (
        Regex(r"output_tokens_limit|response_tokens_limit|max(?:imum)?[ _](?:output|completion)", re.I),
        "output",
    ),
    (Regex(r"input_tokens_limit|request_tokens_limit|total_tokens_limit|context", re.I), "context"),
    (Regex(r"memory", re.I), "memory"),
    (Regex(r"quota|credit|spend|billing", re.I), "quota"),
)
_LONGEST = 4_000


def resource_details(found: Finding, error: object, message: str) -> dict[str, Any]:
    """`resource`, and `usage` and `limit` where they are known, of a failure of the kind `resource`."""
    known: dict[str, Any] = {"resource": _resource(found, error, message[:_LONGEST])}
    if found.category is C.OVERFLOW:
        known |= _usage_and_limit(message[:_LONGEST])
    tokens = as_number(read(read(read(error, "completion"), "usage"), "completion_tokens"))
    if tokens is not None:
        known["usage"] = int(tokens)
    rounds = read(error, "rounds")
    if type(rounds) is int:
        known |= {"usage": rounds, "limit": rounds}
    return known


def _resource(found: Finding, error: object, message: str) -> str:
    if found.category is C.OVERFLOW:
        return "context"
    if found.code in _BY_CODE:
        return _BY_CODE[found.code]
    named = next((_BY_CLASS[name] for name in class_names(error) if name in _BY_CLASS), None)
    return named or next((resource for words, resource in _BY_WORDS if words.search(message)), "unknown")


def _usage_and_limit(message: str) -> dict[str, int]:
    for pattern, order in _USAGE_AND_LIMIT:
        match = pattern.search(message)
        if match is not None:
            numbers = [int(re.sub(r"\D", "", number)) for number in match.groups()]
            sums = {
                letter: sum(number for number, kind in zip(numbers, order, strict=True) if kind == letter)
                for letter in order
            }
            return {name: sums[letter] for letter, name in (("u", "usage"), ("l", "limit")) if letter in sums}
    return {}
