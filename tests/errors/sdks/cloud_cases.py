"""Clouds: errors in streams, codes beside a status, lost races, transports."""

import importlib
from typing import Any

from prefect_resilience import ErrorCategory as C
from tests.errors.sdks import clients, model_clients
from tests.errors.sdks.http_cases import said
from tests.errors.sdks.model import Act, Acts, Expected, Situations, constructed, errors_of, of
from tests.errors.sdks.service import Service

azure_core_error = errors_of("azure.core.exceptions")
azure_cosmos_error = errors_of("azure.cosmos.exceptions")

STREAM = {"Content-Type": "text/event-stream"}


def aws(code: str, message: str = "no", status: int = 400, **extra: object) -> Act:
    return said(clients.botocore, status, {"__type": f"com.amazonaws#{code}", "message": message, **extra})


def cut_download(service: Service) -> object:
    import boto3

    service.cuts()
    made: Any = boto3.client(
        "s3", endpoint_url=service.url, aws_access_key_id="none", aws_secret_access_key="none"
    )
    return made.get_object(Bucket="b", Key="k")["Body"].read()


def event_stream(code: str) -> Act:
    error = {"Error": {"Code": code, "Message": "Too many tokens, please wait before trying again."}}
    return constructed("botocore.exceptions.EventStreamError", error, "ConverseStream")


AWS: Situations = {
    "boto3": {
        "ThrottlingException, 'Too many tokens, please wait'": (
            aws("ThrottlingException", "Too many tokens, please wait before trying again.", 429),
            C.RATE_LIMIT,
        ),
        "ValidationException, 'Input is too long'": (
            aws("ValidationException", "Input is too long for requested model."),
            C.OVERFLOW,
        ),
        "throttlingException in a stream": (event_stream("throttlingException"), C.RATE_LIMIT),
        "serviceUnavailableException in a stream": (
            event_stream("serviceUnavailableException"),
            C.UNAVAILABLE,
        ),
        "modelStreamErrorException in a stream": (event_stream("modelStreamErrorException"), C.SERVER_ERROR),
        "TransactionConflictException": (aws("TransactionConflictException"), C.UNAVAILABLE),
        "ConditionalCheckFailedException": (aws("ConditionalCheckFailedException"), C.CONFLICT),
        "TransactionCanceledException, a conflict": (
            aws(
                "TransactionCanceledException",
                CancellationReasons=[{"Code": "None"}, {"Code": "TransactionConflict"}],
            ),
            C.UNAVAILABLE,
        ),
        "TransactionCanceledException, a condition failed": (
            aws(
                "TransactionCanceledException",
                CancellationReasons=[{"Code": "TransactionConflict"}, {"Code": "ConditionalCheckFailed"}],
            ),
            C.CONFLICT,
        ),
        "S3 body cut in the middle": (cut_download, C.NETWORK),
    },
}

AZURE: Situations = {
    "azure-core": {
        "ServiceRequestError": (azure_core_error("ServiceRequestError", "x"), C.NETWORK),
        "ServiceResponseError": (azure_core_error("ServiceResponseError", "x"), C.NETWORK),
        "ServiceResponseTimeoutError": (azure_core_error("ServiceResponseTimeoutError", "x"), C.TIMEOUT),
    },
    "azure-cosmos": {
        "449, retry with": (
            azure_cosmos_error("CosmosHttpResponseError", 449, "a write met another one"),
            C.UNAVAILABLE,
        ),
        "429": (azure_cosmos_error("CosmosHttpResponseError", 429, "request rate is large"), C.RATE_LIMIT),
        "412, access condition failed": (
            azure_cosmos_error("CosmosAccessConditionFailedError", 412, "etag"),
            C.CONFLICT,
        ),
    },
}


def grpc_call(status: str, text: str = "no", trailing: tuple[tuple[str, Any], ...] = ()) -> Act:
    """A real gRPC server that aborts the call, and what the client raises."""

    def act(_: Service) -> object:
        from concurrent import futures

        grpc: Any = importlib.import_module("grpc")

        def end(request: bytes, context: Any) -> bytes:
            context.set_trailing_metadata(trailing)
            context.abort(grpc.StatusCode[status], text)
            return b""

        class Handler(grpc.GenericRpcHandler):
            def service(self, handler_call_details: object) -> object:
                return grpc.unary_unary_rpc_method_handler(end)

        server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                return channel.unary_unary("/any/thing")(b"", timeout=5)
        finally:
            server.stop(None)

    return act


def with_retry_info(seconds: int) -> bytes:
    """A google.rpc.Status with a RetryInfo, written as protobuf has it."""
    duration = bytes((0x08, seconds))
    info = bytes((0x0A, len(duration))) + duration
    kind = b"type.googleapis.com/google.rpc.RetryInfo"
    detail = bytes((0x0A, len(kind))) + kind + bytes((0x12, len(info))) + info
    return bytes((0x08, 8)) + bytes((0x1A, len(detail))) + detail


GRPC: Situations = {
    "grpcio": {
        "UNAVAILABLE": (grpc_call("UNAVAILABLE"), C.UNAVAILABLE),
        "ABORTED": (grpc_call("ABORTED"), C.UNAVAILABLE),
        "UNAVAILABLE, pushback 250 ms": (
            grpc_call("UNAVAILABLE", trailing=(("grpc-retry-pushback-ms", "250"),)),
            Expected(C.UNAVAILABLE, 0.25),
        ),
        "UNAVAILABLE, pushback -1": (
            grpc_call("UNAVAILABLE", trailing=(("grpc-retry-pushback-ms", "-1"),)),
            Expected(C.UNAVAILABLE, retried=False),
        ),
        "RESOURCE_EXHAUSTED, RetryInfo 7 s": (
            grpc_call("RESOURCE_EXHAUSTED", trailing=(("grpc-status-details-bin", with_retry_info(7)),)),
            Expected(C.RATE_LIMIT, 7.0),
        ),
        "RESOURCE_EXHAUSTED, message too large": (
            grpc_call("RESOURCE_EXHAUSTED", "Received message larger than max (5000000 vs. 4194304)"),
            C.OVERFLOW,
        ),
        "PERMISSION_DENIED": (grpc_call("PERMISSION_DENIED"), C.AUTH),
    },
}

GOOGLE: Situations = {
    "google-api-core": {
        "ABORTED (Spanner)": (
            constructed("google.api_core.exceptions.Aborted", "Transaction was aborted."),
            C.UNAVAILABLE,
        ),
    },
    "google-cloud-bigquery": {
        "400, concurrent update": (
            said(
                clients.google_bigquery,
                400,
                {
                    "error": {
                        "code": 400,
                        "message": "Could not serialize access to table t due to concurrent update",
                        "errors": [{"reason": "invalidQuery"}],
                    }
                },
            ),
            C.UNAVAILABLE,
        ),
    },
    "google-genai": {
        "429 with retryDelay in the body": (
            said(
                model_clients.genai,
                429,
                {
                    "error": {
                        "code": 429,
                        "status": "RESOURCE_EXHAUSTED",
                        "message": "You exceeded your current quota, check your plan. "
                        "Please retry in 34.07s.",
                        "details": [
                            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}
                        ],
                    }
                },
            ),
            Expected(C.RATE_LIMIT, 34.0),
        ),
        "503, the model is overloaded": (
            said(
                model_clients.genai,
                503,
                {"error": {"code": 503, "status": "UNAVAILABLE", "message": "overloaded"}},
            ),
            C.UNAVAILABLE,
        ),
    },
}


def streamed(ask: Any, event: str) -> Act:
    def act(service: Service) -> object:
        service.says(200, event.encode(), STREAM)
        return ask(service.url, 5.0, True)

    return act


def _openai_event(message: str, code: str = "null") -> str:
    return f'data: {{"error": {{"message": "{message}", "code": {code}, "type": null}}}}\n\n'


def _anthropic_event(kind: str, message: str) -> str:
    return f'event: error\ndata: {{"type":"error","error":{{"type":"{kind}","message":"{message}"}}}}\n\n'


def _as_openai(ask: Any) -> Acts:
    return {
        "stream: 'overloaded'": (
            streamed(ask, _openai_event("The engine is currently overloaded")),
            C.UNAVAILABLE,
        ),
        "stream: 'server had an error'": (
            streamed(ask, _openai_event("The server had an error while processing your request")),
            C.SERVER_ERROR,
        ),
        "stream: 'rate limit reached, try again in 20ms'": (
            streamed(ask, _openai_event("Rate limit reached for m. Please try again in 20ms.")),
            Expected(C.RATE_LIMIT, 0.02),
        ),
        "stream: 'exceeded your current quota'": (
            streamed(ask, _openai_event("You exceeded your current quota, please check your plan")),
            C.RESOURCE_EXHAUSTED,
        ),
    }


STREAMS: Situations = {
    "openai": _as_openai(model_clients.openai),
    "groq": _as_openai(model_clients.groq),
    "anthropic": {
        "stream: overloaded_error": (
            streamed(model_clients.anthropic, _anthropic_event("overloaded_error", "Overloaded")),
            C.UNAVAILABLE,
        ),
        "stream: rate_limit_error": (
            streamed(model_clients.anthropic, _anthropic_event("rate_limit_error", "slow down")),
            C.RATE_LIMIT,
        ),
        "stream: usage limits reached": (
            streamed(
                model_clients.anthropic,
                _anthropic_event(
                    "invalid_request_error", "You have reached your specified API usage limits."
                ),
            ),
            C.RESOURCE_EXHAUSTED,
        ),
    },
}


def _should_retry(ask: Any) -> Acts:
    return {
        f"{status}, x-should-retry: {word}": (
            said(ask, status, {"error": {"message": "x"}}, {"x-should-retry": word}),
            Expected(category, retried=word == "true"),
        )
        for status, word, category in (
            (503, "false", C.UNAVAILABLE),
            (400, "true", C.INVALID),
            (409, "true", C.CONFLICT),
        )
    }


HEADERS: Situations = {
    "openai": _should_retry(model_clients.openai),
    "anthropic": _should_retry(model_clients.anthropic),
    "stripe": {
        "500, stripe-should-retry: false": (
            said(clients.stripe, 500, {"error": {"message": "x"}}, {"Stripe-Should-Retry": "false"}),
            Expected(C.SERVER_ERROR, retried=False),
        ),
    },
    "PyGithub": {
        "403, secondary rate limit": (
            said(
                clients.github,
                403,
                {"message": "You have exceeded a secondary rate limit. Please wait a few minutes."},
            ),
            C.RATE_LIMIT,
        ),
    },
    "requests": {
        "403, Retry-After: 30": (
            said(clients.requests, 403, {}, {"Retry-After": "30"}),
            Expected(C.RATE_LIMIT, 30.0),
        ),
    },
    "simple-salesforce": {
        "403, REQUEST_LIMIT_EXCEEDED": (
            said(
                clients.salesforce, 403, [{"errorCode": "REQUEST_LIMIT_EXCEEDED", "message": "TotalRequests"}]
            ),
            C.RESOURCE_EXHAUSTED,
        ),
        "400, UNABLE_TO_LOCK_ROW": (
            said(
                clients.salesforce, 400, [{"errorCode": "UNABLE_TO_LOCK_ROW", "message": "unable to obtain"}]
            ),
            C.UNAVAILABLE,
        ),
    },
    "slack_sdk": {
        "200, ratelimited": (
            said(clients.slack, 200, {"ok": False, "error": "ratelimited"}, {"Retry-After": "30"}),
            Expected(C.RATE_LIMIT, 30.0),
        ),
        "200, invalid_auth": (said(clients.slack, 200, {"ok": False, "error": "invalid_auth"}), C.AUTH),
    },
}

CLOUD_CASES = of(AWS, AZURE, GRPC, GOOGLE, STREAMS, HEADERS)
