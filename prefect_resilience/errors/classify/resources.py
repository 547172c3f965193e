"""Which resource a failure says is used up, and how much of it: by type, code and the providers' words."""

from __future__ import annotations

import re
from typing import Any

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.shapes import as_dict, as_number, class_names, read, read_text
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import FailureReason as R
from prefect_resilience.errors.taxonomy import Finding, bounded

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


MOST_VIOLATIONS = 100
LONGEST_OUTPUT = 2_000
"""Characters of the original output that stand in the details; more of it is the partial output."""

_BY_REASON: dict[R, C] = {
    R.CONTEXT_RETRIEVAL_FAILURE: C.NOT_FOUND,
    R.CONTEXT_MATCHING_FAILURE: C.VALIDATION,
    R.CONTEXT_PARSING_FAILURE: C.VALIDATION,
    R.XML_VALIDATION_FAILURE: C.VALIDATION,
    R.OUTPUT_FORMAT_FAILURE: C.VALIDATION,
    R.EXECUTION_TIMEOUT: C.TIMEOUT,
    R.EXECUTION_HALTED: C.CANCELLED,
    R.SUBTASK_FAILURE: C.SUBTASK,
    R.INPUT_VALIDATION_FAILURE: C.INVALID,
    R.UNEXPECTED_ERROR: C.UNEXPECTED,
}


def resource_exhausted(error: object, now: float) -> Finding:
    known = {name: read(error, name) for name in ("resource", "usage", "limit")}
    details = {name: value for name, value in known.items() if value is not None}
    return Finding(C.RESOURCE_EXHAUSTED, details=details)


def task_failure(error: object, now: float) -> Finding:
    """By its reason. What matched badly may match better the next time."""
    reason = R(str(read(error, "reason")))
    again = True if reason is R.CONTEXT_MATCHING_FAILURE else None
    details: dict[str, Any] = as_dict(read(error, "details"))
    return Finding(_BY_REASON[reason], reason.value, details=details, retryable=again, reason=reason)


def subtask_error(error: object, now: float) -> Finding:
    request = {"type": "step", "name": read(error, "name"), "inputs": as_dict(read(error, "inputs"))}
    step = read(error, "failed_step")
    details = {"subtask_request": request, "failed_step": request["name"] if step is None else step}
    return Finding(C.SUBTASK, details=details)


def output_format_error(error: object, now: float) -> Finding:
    details: dict[str, Any] = {
        "expected_type": read(error, "expected_type"),
        "actual_type": read(error, "actual_type"),
        "violations": list(read(error, "violations") or ())[:MOST_VIOLATIONS],
    }
    original = read(error, "original_output")
    if original is not None:
        text = original if isinstance(original, str) else None
        details["original_output"] = original if text is None else bounded(text, LONGEST_OUTPUT)
        if text is None and len(read_text(original)) > LONGEST_OUTPUT:
            details["original_output"] = bounded(read_text(original), LONGEST_OUTPUT)
    return Finding(C.VALIDATION, details=details)
