"""Services over HTTP: what a loopback service answers to the real client."""

from __future__ import annotations

from tests.errors.more_sdks import clients
from tests.errors.more_sdks.acts import Situations, answers, of, refused, silent
from tests.errors.sdks.model import NOW, Act, constructed
from tests.errors.sdks.service import Service

entra = answers(clients.azure_identity)


def of_entra(status: int, code: str, number: str, wait: float | None = None) -> Act:
    said = {
        "error": code,
        "error_description": f"{number}: no",
        "error_codes": [int(number.removeprefix("AADSTS"))],
    }
    return entra(status, said, wait)


def chain_of_credentials(_: Service) -> object:
    environment = of("azure.identity.EnvironmentCredential")()
    return of("azure.identity.ChainedTokenCredential")(environment).get_token("https://a/.default")


AZURE_IDENTITY: Situations = {
    "connection refused at the token endpoint": refused(clients.azure_identity),
    "AADSTS7000215, invalid client secret": of_entra(401, "invalid_client", "AADSTS7000215"),
    "AADSTS700016, no such application": of_entra(400, "unauthorized_client", "AADSTS700016"),
    "503, AADSTS90033, transient": of_entra(503, "temporarily_unavailable", "AADSTS90033"),
    "429, AADSTS90055, throttled, Retry-After: 7": of_entra(429, "temporarily_unavailable", "AADSTS90055", 7),
    "500 at the token endpoint": of_entra(500, "server_error", "AADSTS90000"),
    "no credentials in the environment": lambda _: of("azure.identity.EnvironmentCredential")().get_token(
        "https://a/.default"
    ),
    "a chain without any credential": chain_of_credentials,
    "no answer in time": silent(clients.azure_identity),
}

box = answers(clients.box)


def of_box(status: int, code: str = "no", wait: float | None = None) -> Act:
    return box(status, {"type": "error", "status": status, "code": code, "message": "no"}, wait)


BOX: Situations = {
    "429, Retry-After: 3": of_box(429, "rate_limit_exceeded", 3),
    "401": of_box(401, "unauthorized"),
    "403, insufficient_scope": of_box(403, "insufficient_scope"),
    "403, storage_limit_exceeded": of_box(403, "storage_limit_exceeded"),
    "404": of_box(404, "not_found"),
    "409, item_name_in_use": of_box(409, "item_name_in_use"),
    "412, sync_state_precondition_failed": of_box(412, "sync_state_precondition_failed"),
    "413, file_size_limit_exceeded": of_box(413, "file_size_limit_exceeded"),
    "500": of_box(500, "internal_server_error"),
    "502": of_box(502, "bad_gateway"),
    "503": of_box(503, "unavailable"),
    "connection refused": refused(clients.box),
}


def unconfigured(_: Service) -> object:
    options = of("braintree.Configuration")("sandbox", "", "", "")
    return of("braintree.BraintreeGateway")(options)


braintree = answers(clients.braintree)
BRAINTREE: Situations = {
    **{str(status): braintree(status, b"") for status in (429, 401, 403, 404, 408, 500, 503, 504)},
    "426, upgrade required": braintree(426, b""),
    "connection refused": refused(clients.braintree),
    "no answer in time": silent(clients.braintree),
    "no keys configured": unconfigured,
}

deepl = answers(clients.deepl)
DEEPL: Situations = {
    **{str(status): deepl(status, {"message": "no"}) for status in (429, 403, 404, 413, 400, 503, 500)},
    "456, the characters of this month are used up": deepl(456, {"message": "Quota exceeded"}),
    "connection refused": refused(clients.deepl),
    "no answer in time": silent(clients.deepl),
}

dropbox = answers(clients.dropbox)


def of_dropbox(status: int, error: object, summary: str) -> Act:
    return dropbox(status, {"error": error, "error_summary": summary})


def failed_upload(reason: dict[str, object]) -> Act:
    error = {".tag": "path", "reason": reason, "upload_session_id": "u"}
    return of_dropbox(409, error, f"path/{reason['.tag']}/..")


DROPBOX: Situations = {
    "429, too_many_requests, Retry-After: 15": of_dropbox(
        429, {"reason": {".tag": "too_many_requests"}, "retry_after": 15}, "too_many_requests/.."
    ),
    "429, too_many_write_operations": failed_upload({".tag": "too_many_write_operations"}),
    "401, expired_access_token": of_dropbox(401, {".tag": "invalid_access_token"}, "invalid_access_token/.."),
    "400, bad input": dropbox(400, b"Error in call to API function: bad input"),
    "403, no access": constructed("dropbox.exceptions.HttpError", "id", 403, "no access"),
    "409, path/not_found": lambda _: of("dropbox.exceptions.ApiError")(
        "id", of("dropbox.files.DownloadError").path(of("dropbox.files.LookupError").not_found), None, None
    ),
    "409, path/conflict": failed_upload({".tag": "conflict", "conflict": {".tag": "file"}}),
    "409, path/insufficient_space": failed_upload({".tag": "insufficient_space"}),
    "500": dropbox(500, b"no"),
    "503": dropbox(503, b"no"),
    "connection refused": refused(clients.dropbox),
}

google = answers(clients.googleapi)


def of_google(status: int, reason: str) -> Act:
    told = {"code": status, "message": "no", "errors": [{"domain": "usageLimits", "reason": reason}]}
    return google(status, {"error": told})


GOOGLE: Situations = {
    "429, Retry-After: 3": google(429, {"error": {"code": 429, "message": "no"}}, 3),
    **{
        f"{status}, {reason}": of_google(status, reason)
        for status, reason in (
            *((403, "userRateLimitExceeded"), (403, "concurrentLimitExceeded"), (403, "dailyLimitExceeded")),
            *((403, "storageQuotaExceeded"), (403, "insufficientFilePermissions"), (401, "authError")),
            *((404, "notFound"), (412, "conditionNotMet"), (500, "backendError"), (501, "notImplemented")),
        )
    },
    "503": of_google(503, "backendError"),
    "connection refused": refused(clients.googleapi),
}

hub = answers(clients.huggingface)
HUGGINGFACE: Situations = {
    "429, Retry-After: 20": hub(429, {"error": "no"}, 20),
    "429, RateLimit: r=0; t=55": hub(429, {"error": "no"}, RateLimit='"api";r=0;t=55'),
    "402, the monthly credits are used up": hub(
        402, {"error": "You have exceeded your monthly included credits for Inference Providers."}
    ),
    "401": hub(401, {"error": "Invalid username or password."}),
    "403, gated": hub(403, {"error": "no"}, X_Error_Code="GatedRepo"),
    "404, no such repository": hub(404, {"error": "no"}, X_Error_Code="RepoNotFound"),
    "404, no such file": hub(404, {"error": "no"}, X_Error_Code="EntryNotFound"),
    **{str(status): hub(status, {"error": "no"}) for status in (500, 503, 504)},
    "connection refused": refused(clients.huggingface),
}

meilisearch = answers(clients.meilisearch)


def of_meilisearch(status: int, code: str, kind: str, wait: float | None = None) -> Act:
    return meilisearch(status, {"message": "no", "code": code, "type": kind, "link": "x"}, wait)


MEILISEARCH: Situations = {
    "401, missing_authorization_header": of_meilisearch(401, "missing_authorization_header", "auth"),
    "403, invalid_api_key": of_meilisearch(403, "invalid_api_key", "auth"),
    "404, index_not_found": of_meilisearch(404, "index_not_found", "invalid_request"),
    "409, index_already_exists": of_meilisearch(409, "index_already_exists", "invalid_request"),
    "413, payload_too_large": of_meilisearch(413, "payload_too_large", "invalid_request"),
    "400, invalid_document_id": of_meilisearch(400, "invalid_document_id", "invalid_request"),
    "422, no_space_left_on_device": of_meilisearch(422, "no_space_left_on_device", "system"),
    "503, too_many_search_requests, Retry-After: 10": of_meilisearch(
        503, "too_many_search_requests", "system", 10
    ),
    "500, internal": of_meilisearch(500, "internal", "internal"),
    "connection refused": refused(clients.meilisearch),
    "no answer in time": silent(clients.meilisearch),
}

oci = answers(clients.oci)
OCI: Situations = {
    **{
        f"{status}, {code}": oci(status, {"code": code, "message": "no"})
        for status, code in (
            *((429, "TooManyRequests"), (401, "NotAuthenticated"), (404, "NotAuthorizedOrNotFound")),
            *((400, "LimitExceeded"), (400, "QuotaExceeded"), (400, "InvalidParameter")),
            *((409, "IncorrectState"), (412, "NoEtagMatch"), (413, "PayloadTooLarge")),
            *((500, "InternalServerError"), (501, "MethodNotImplemented"), (503, "ServiceUnavailable")),
        )
    },
    "500, OutOfHostCapacity": oci(500, {"code": "InternalError", "message": "Out of host capacity."}),
    "connection refused": refused(clients.oci),
    "no answer in time": silent(clients.oci),
}

pinecone = answers(clients.pinecone)


def of_pinecone(status: int, code: str, message: str = "no", wait: float | None = None) -> Act:
    return pinecone(status, {"error": {"code": code, "message": message}, "status": status}, wait)


PINECONE: Situations = {
    "429, too many requests, Retry-After: 3": of_pinecone(429, "RESOURCE_EXHAUSTED", "Too many requests", 3),
    "429, read units of this month are used up": of_pinecone(
        429,
        "RESOURCE_EXHAUSTED",
        "Request failed. You've reached your read unit limit for the current month. To continue, upgrade.",
    ),
    "401": of_pinecone(401, "UNAUTHENTICATED", "Invalid API Key"),
    "403, quota of indexes": of_pinecone(
        403, "FORBIDDEN", "Request failed. You've reached the max serverless indexes allowed in project p"
    ),
    "404": of_pinecone(404, "NOT_FOUND"),
    "409": of_pinecone(409, "ALREADY_EXISTS"),
    "412": of_pinecone(412, "FAILED_PRECONDITION"),
    "500": of_pinecone(500, "UNKNOWN"),
    "503": of_pinecone(503, "UNAVAILABLE"),
    "connection refused": refused(clients.pinecone),
    "no answer in time": silent(clients.pinecone),
}

plaid = answers(clients.plaid)


def of_plaid(status: int, kind: str, code: str, message: str = "no") -> Act:
    told = {"error_type": kind, "error_code": code, "error_message": message, "display_message": None}
    return plaid(status, told)


PLAID: Situations = {
    "429, TRANSACTIONS_LIMIT": of_plaid(
        429, "RATE_LIMIT_EXCEEDED", "TRANSACTIONS_LIMIT", "rate limit exceeded. please try again later"
    ),
    "400, ITEM_LOGIN_REQUIRED": of_plaid(
        400, "ITEM_ERROR", "ITEM_LOGIN_REQUIRED", "the login details of this item have changed"
    ),
    "400, INVALID_API_KEYS": of_plaid(
        400, "INVALID_INPUT", "INVALID_API_KEYS", "invalid client_id or secret provided"
    ),
    "400, INSTITUTION_DOWN": of_plaid(
        400, "INSTITUTION_ERROR", "INSTITUTION_DOWN", "this institution is not currently responding"
    ),
    "400, INSTITUTION_NOT_RESPONDING": of_plaid(
        400, "INSTITUTION_ERROR", "INSTITUTION_NOT_RESPONDING", "this institution is not responding"
    ),
    "400, PRODUCT_NOT_READY": of_plaid(
        400, "ITEM_ERROR", "PRODUCT_NOT_READY", "the requested product is not yet ready"
    ),
    "429, ADDITION_LIMIT, the items of the trial are used up": of_plaid(
        429, "RATE_LIMIT_EXCEEDED", "ADDITION_LIMIT", "addition limit exceeded for this client_id"
    ),
    "400, INVALID_FIELD": of_plaid(400, "INVALID_REQUEST", "INVALID_FIELD"),
    "500, INTERNAL_SERVER_ERROR": of_plaid(500, "API_ERROR", "INTERNAL_SERVER_ERROR"),
    "503, PLANNED_MAINTENANCE": of_plaid(503, "API_ERROR", "PLANNED_MAINTENANCE"),
    "connection refused": refused(clients.plaid),
}

qdrant = answers(clients.qdrant)


def of_qdrant(status: int, message: str = "no", wait: float | None = None) -> Act:
    return qdrant(status, {"status": {"error": message}, "time": 0.0}, wait)


QDRANT: Situations = {
    "429, Retry-After: 3": of_qdrant(429, "Rate limiting exceeded", 3),
    "401": of_qdrant(401),
    "403": of_qdrant(403),
    "404, no such collection": of_qdrant(404, "Not found: Collection `c` doesn't exist!"),
    "400, wrong vector size": of_qdrant(400, "Wrong input: Vector dimension error: expected dim: 3, got 4"),
    "409, the collection exists": of_qdrant(409, "Wrong input: Collection `c` already exists!"),
    "500": of_qdrant(500),
    "503": of_qdrant(503),
    "507, storage full": of_qdrant(507, "Service internal error: No space left on device"),
    "connection refused": refused(clients.qdrant),
    "no answer in time": silent(clients.qdrant),
}

resend = answers(clients.resend)


def of_resend(status: int, name: str, message: str = "no", wait: float | None = None) -> Act:
    return resend(status, {"statusCode": status, "name": name, "message": message}, wait)


RESEND: Situations = {
    "429, rate_limit_exceeded, Retry-After: 1": of_resend(
        429, "rate_limit_exceeded", "Too many requests. You can only make 2 requests per second.", 1
    ),
    "429, daily_quota_exceeded": of_resend(
        429, "daily_quota_exceeded", "You have reached your daily email sending quota."
    ),
    "429, monthly_quota_exceeded": of_resend(
        429, "monthly_quota_exceeded", "You have reached your monthly email sending quota."
    ),
    "401, missing_api_key": of_resend(401, "missing_api_key"),
    "403, invalid_api_key": of_resend(403, "invalid_api_key", "API key is invalid"),
    "422, invalid_from_address": of_resend(422, "invalid_from_address"),
    "404, not_found": of_resend(404, "not_found"),
    "409, invalid_idempotent_request": of_resend(409, "invalid_idempotent_request"),
    "500, application_error": of_resend(500, "application_error"),
    "connection refused": refused(clients.resend),
}

tweepy = answers(clients.tweepy)
TWEEPY: Situations = {
    "429, x-rate-limit-reset in 60 s": tweepy(
        429, {"title": "Too Many Requests"}, x_rate_limit_remaining="0", x_rate_limit_reset=f"{NOW + 60:.0f}"
    ),
    "429, UsageCapExceeded, the posts of this month are used up": tweepy(
        429,
        {
            "title": "UsageCapExceeded",
            "period": "Monthly",
            "detail": "Usage cap exceeded: Monthly product cap",
            "type": "https://api.twitter.com/2/problems/usage-capped",
        },
    ),
    **{str(status): tweepy(status, {"title": "no"}) for status in (400, 401, 403, 404, 500, 503)},
    "connection refused": refused(clients.tweepy),
    "no answer in time": silent(clients.tweepy),
}

gql = answers(clients.gql)


def of_graphql(message: str, **extensions: str) -> Act:
    return gql(200, {"errors": [{"message": message, "extensions": extensions}]})


GQL: Situations = {
    "Cannot query field": gql(200, {"errors": [{"message": "Cannot query field 'a' on type 'Query'."}]}),
    "503": gql(503, {}),
    "429, Retry-After: 3": gql(429, {}, 3),
    "401": gql(401, {}),
    "connection refused": refused(clients.gql),
    "INTERNAL_SERVER_ERROR": of_graphql("no", code="INTERNAL_SERVER_ERROR"),
    "FORBIDDEN": of_graphql("no", code="FORBIDDEN"),
    "the connection was closed": constructed(
        "gql.transport.exceptions.TransportConnectionFailed", "Server closed the connection"
    ),
}

mistral = answers(clients.mistral)
MISTRAL: Situations = {
    "422, a field is missing": mistral(
        422, {"detail": [{"loc": ["body", "model"], "msg": "Field required", "type": "missing"}]}
    ),
    "429, capacity of the tier exceeded": mistral(
        429, {"message": "Service tier capacity exceeded for this model.", "code": "3505"}
    ),
    "402, the monthly budget is used up": mistral(402, {"message": "You have exceeded your monthly budget."}),
    "500": mistral(500, {"message": "no"}),
    "404, no such model": mistral(404, {"message": "no"}),
}
