"""What the retry logic inside the SDKs says of the same answers, beside ours."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx

from prefect_resilience import classify
from tests.errors.sdks.model import NOW, installed

ANSWERS: list[tuple[str, int, dict[str, str]]] = [
    *((str(status), status, {}) for status in (400, 401, 403, 404, 408, 409, 412, 425, 429, 449)),
    *((str(status), status, {}) for status in (500, 501, 502, 503, 504, 529)),
    ("403, Retry-After", 403, {"retry-after": "3"}),
    ("429, x-should-retry: false", 429, {"x-should-retry": "false"}),
    ("400, x-should-retry: true", 400, {"x-should-retry": "true"}),
    ("500, stripe-should-retry: false", 500, {"stripe-should-retry": "false"}),
]


@dataclass(frozen=True)
class Difference:
    package: str
    answer: str
    theirs: bool
    ours: bool
    why: str


def _openai_like(name: str) -> Callable[[int, dict[str, str]], bool]:
    def says(status: int, headers: dict[str, str]) -> bool:
        sdk: Any = importlib.import_module(name)
        made = getattr(sdk, {"openai": "OpenAI", "anthropic": "Anthropic", "groq": "Groq"}[name])(
            api_key="none"
        )
        return made._should_retry(_response(status, headers))

    return says


def _response(status: int, headers: dict[str, str]) -> httpx.Response:
    return httpx.Response(status, headers=headers, request=httpx.Request("GET", "http://service.invalid"))


def _google(status: int, headers: dict[str, str]) -> bool:
    retry: Any = importlib.import_module("google.api_core.retry")
    exceptions: Any = importlib.import_module("google.api_core.exceptions")
    return retry.if_transient_error(exceptions.from_http_status(status, "x"))


def _azure(status: int, headers: dict[str, str]) -> bool:
    policies: Any = importlib.import_module("azure.core.pipeline.policies")
    policy = policies.RetryPolicy()
    answer = SimpleNamespace(
        http_response=SimpleNamespace(status_code=status, headers=headers),
        http_request=SimpleNamespace(method="GET"),
    )
    return policy.is_retry(policy.configure_retries({}), answer)


def _stripe(status: int, headers: dict[str, str]) -> bool:
    http: Any = importlib.import_module("stripe._http_client")
    return http.RequestsClient()._should_retry(("", status, headers), None, 0, 2)


OWN: dict[str, Callable[[int, dict[str, str]], bool]] = {
    "openai": _openai_like("openai"),
    "anthropic": _openai_like("anthropic"),
    "groq": _openai_like("groq"),
    "google-api-core": _google,
    "azure-core": _azure,
    "stripe": _stripe,
}

_WHY: dict[str, str] = {
    "408": "a request that timed out is retried; this SDK leaves it to the caller",
    "409": "a conflict stays until it is resolved; a lost race is recognised by its text or code",
    "425": "the server did not touch the request and asks for it again",
    "429": "a throttle is retried; this SDK leaves it to the caller",
    "449": "Azure Cosmos DB's 'retry with': its own client retries it, the general policy does not know it",
    "500": "a server error is retried; this SDK leaves it to the caller",
    "501": "the server cannot do it, now or later; this SDK retries every 5xx",
    "502": "a gateway's error is retried; this SDK leaves it to the caller",
    "504": "a gateway's timeout is retried; this SDK leaves it to the caller",
    "529": "overloaded; this SDK does not know the status",
    "503": "a busy service is retried; this SDK leaves it to the caller",
    "403, Retry-After": "a 403 with `Retry-After` is a rate limit",
    "429, x-should-retry: false": "the header is OpenAI's and Anthropic's; other SDKs do not read it",
    "400, x-should-retry: true": "the header is OpenAI's and Anthropic's; other SDKs do not read it",
    "500, stripe-should-retry: false": "the header is Stripe's; other SDKs do not read it",
}


def differences() -> Iterator[Difference]:
    """Where an installed SDK and we do not say the same, with the reason."""
    for package, says in OWN.items():
        if installed(package) is None:
            continue
        for answer, status, headers in ANSWERS:
            theirs = bool(says(status, headers))
            ours = classify(_response(status, headers), now=NOW).retryable
            if theirs != ours:
                yield Difference(package, answer, theirs, ours, _WHY.get(answer, ""))
