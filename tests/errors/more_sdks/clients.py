"""One call of each SDK that talks HTTP, to a base URL, without its own retries."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import requests
from requests.adapters import HTTPAdapter


class Detour(HTTPAdapter):
    """Sends every request to one address, for SDKs that allow no other host than their own."""

    def __init__(self, url: str, timeout: float | None = None) -> None:
        super().__init__()
        self.url, self.timeout = url, timeout

    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if ".well-known" in request.url and self.url not in request.url:
            return self._about_the_authority(request)
        request.url = self.url
        if self.timeout is not None:
            kwargs["timeout"] = self.timeout
        return super().send(request, *args, **kwargs)

    def _about_the_authority(self, request: Any) -> requests.Response:
        """What Entra tells about a tenant, before any token is asked for."""
        answer = requests.Response()
        answer.status_code, answer.request, answer.url = 200, request, request.url
        answer.headers["Content-Type"] = "application/json"
        place = request.url.partition("/v2.0")[0]
        told = {"token_endpoint": f"{place}/token", "authorization_endpoint": f"{place}/authorize"}
        answer._content = json.dumps(told | {"issuer": f"{place}/v2.0"}).encode()
        answer.raw = io.BytesIO()
        return answer


def session_to(url: str, timeout: float | None = None) -> requests.Session:
    session = requests.Session()
    session.mount("https://", Detour(url, timeout))
    return session


def azure_identity(url: str, timeout: float) -> object:
    from azure.core.pipeline.transport import RequestsTransport
    from azure.identity import ClientSecretCredential

    made = ClientSecretCredential(
        "00000000-0000-0000-0000-000000000000",
        "11111111-1111-1111-1111-111111111111",
        "none",
        disable_instance_discovery=True,
        transport=RequestsTransport(session=session_to(url, timeout), session_owner=False),
        retry_total=0,
    )
    return made.get_token("https://management.azure.com/.default")


def box(url: str, timeout: float) -> object:
    import box_sdk_gen as sdk
    from box_sdk_gen.networking import BaseUrls, BoxRetryStrategy, NetworkSession

    class Once(BoxRetryStrategy):
        def should_retry(self, *_: Any, **__: Any) -> bool:
            return False

    network = NetworkSession(
        base_urls=BaseUrls(base_url=url, upload_url=url, oauth_2_url=url), retry_strategy=Once()
    )
    made: Any = sdk.BoxClient(sdk.BoxDeveloperTokenAuth(token="none"), network_session=network)
    return made.users.get_user_me()


def braintree(url: str, timeout: float) -> object:
    import braintree as sdk
    from braintree.environment import Environment

    host, _, port = url.removeprefix("http://").partition(":")
    place = Environment("loopback", host, port, "", False, None)
    options = sdk.Configuration(place, "m", "k", "s", timeout=timeout, wrap_http_exceptions=True)
    made: Any = sdk.BraintreeGateway(options)
    return made.customer.find("c")


def deepl(url: str, timeout: float) -> object:
    import deepl as sdk
    from deepl import http_client

    http_client.max_network_retries, http_client.min_connection_timeout = 0, timeout
    return sdk.Translator("none", server_url=url).translate_text("a", target_lang="DE")


def dropbox(url: str, timeout: float) -> object:
    import dropbox as sdk

    options: Any = {"max_retries_on_error": 0, "max_retries_on_rate_limit": 0}
    made: Any = sdk.Dropbox("none", session=session_to(url, timeout), **options)
    return made.files_upload(b"x", "/a")


def googleapi(url: str, timeout: float) -> object:
    import httplib2
    from googleapiclient.http import HttpRequest

    made: Any = HttpRequest(httplib2.Http(timeout=timeout), lambda answer, body: body, url)
    return made.execute(num_retries=0)


def huggingface(url: str, timeout: float) -> object:
    import huggingface_hub as sdk

    return sdk.HfApi(endpoint=url, token="none").model_info("a/b", timeout=timeout)


def meilisearch(url: str, timeout: float) -> object:
    import meilisearch as sdk

    return sdk.Client(url, "none", timeout=timeout).get_index("movies")  # type: ignore[arg-type]


def oci(url: str, timeout: float) -> object:
    import oci as sdk
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    options = {
        **{name: f"ocid1.{name}.oc1..aaaa" for name in ("tenancy", "user")},
        **{"fingerprint": ":".join(["00"] * 16), "region": "eu-frankfurt-1", "key_content": pem.decode()},
    }
    made: Any = sdk.identity.IdentityClient(
        options, service_endpoint=url, retry_strategy=sdk.retry.NoneRetryStrategy(), timeout=timeout
    )
    return made.list_regions()


def pinecone(url: str, timeout: float) -> object:
    import pinecone as sdk
    from pinecone import RetryConfig

    made: Any = sdk.Pinecone(
        api_key="none", host=url, timeout=timeout, retry_config=RetryConfig(max_retries=0)
    )
    return made.indexes.describe("i")


def plaid(url: str, timeout: float) -> object:
    import plaid as sdk
    from plaid.api.plaid_api import PlaidApi
    from plaid.model.accounts_get_request import AccountsGetRequest

    options = sdk.Configuration(host=url, api_key={"clientId": "none", "secret": "none"})
    options.retries = False
    made: Any = PlaidApi(sdk.ApiClient(options))
    return made.accounts_get(AccountsGetRequest(access_token="none"), _request_timeout=timeout)


def arango(url: str, timeout: float) -> object:
    import arango as sdk

    class Plain(sdk.http.DefaultHTTPClient):
        RETRY_ATTEMPTS = 0

        def create_session(self, host: str) -> requests.Session:
            return requests.Session()

    made: Any = sdk.ArangoClient(url, http_client=Plain(request_timeout=timeout), resolver_max_tries=0)
    return made.db("d", "u", "p").collection("c").get("k")


def qdrant(url: str, timeout: float) -> object:
    import qdrant_client as sdk

    made: Any = sdk.QdrantClient(url, timeout=timeout, check_compatibility=False)  # type: ignore[arg-type]
    made._client.openapi_client.client._client.timeout = timeout
    return made.get_collection("c")


def resend(url: str, timeout: float) -> object:
    import resend as sdk

    sdk.api_key, sdk.api_url = "none", url
    return sdk.Emails.send({"from": "a@b.c", "to": "a@b.c", "subject": "s", "html": "h"})


def tweepy(url: str, timeout: float) -> object:
    import tweepy as sdk

    made: Any = sdk.Client(bearer_token="none")
    made.session = session_to(url, timeout)
    return made.get_user(username="a")


def gql(url: str, timeout: float) -> object:
    from gql import Client
    from gql import gql as query
    from gql.transport.requests import RequestsHTTPTransport

    made = Client(transport=RequestsHTTPTransport(url, timeout=max(1, int(timeout)), retries=0))
    return made.execute(query("{ a }"))


def mistral(url: str, timeout: float) -> object:
    from tests.errors.sdks import model_clients

    return model_clients.mistral(url, timeout)


def schema_registry(url: str, timeout: float) -> object:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    made: Any = SchemaRegistryClient({"url": url, "max.retries": 0, "timeout": timeout})
    return made.get_latest_version("s")


def websocket(url: str, timeout: float) -> object:
    from websockets.sync.client import connect

    return connect(url.replace("http", "ws"), open_timeout=timeout)


def temporal(url: str, timeout: float) -> object:
    from temporalio.client import Client

    return asyncio.run(Client.connect(url.removeprefix("http://")))
