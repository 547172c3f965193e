"""One call of each HTTP client and SaaS SDK, without its own retries."""

import asyncio
from typing import Any


def requests(url: str, timeout: float) -> object:
    import requests as sdk

    answer = sdk.get(url, timeout=timeout)
    answer.raise_for_status()
    return answer


def httpx(url: str, timeout: float) -> object:
    import httpx as sdk

    return sdk.get(url, timeout=timeout).raise_for_status()


def aiohttp(url: str, timeout: float) -> object:
    import aiohttp as sdk

    async def ask() -> object:
        limit = sdk.ClientTimeout(total=timeout)
        async with sdk.ClientSession(timeout=limit) as session, session.get(url) as answer:
            answer.raise_for_status()
            return await answer.read()

    return asyncio.run(ask())


def github(url: str, timeout: float) -> object:
    import github as sdk

    made: Any = sdk.Github(base_url=url, retry=None, timeout=max(1, int(timeout)))  # type: ignore[arg-type]
    return made.get_repo("a/b").name


def slack(url: str, timeout: float) -> object:
    import slack_sdk as sdk

    made: Any = sdk.WebClient(token="none", base_url=f"{url}/", timeout=timeout)  # type: ignore[arg-type]
    return made.api_test()


def stripe(url: str, timeout: float) -> object:
    import stripe as sdk

    http: Any = sdk.RequestsClient(timeout=timeout)
    addresses: Any = {"api": url}
    made = sdk.StripeClient("none", base_addresses=addresses, max_network_retries=0, http_client=http)
    return made.v1.customers.list()


def twilio(url: str, timeout: float) -> object:
    from twilio.http.http_client import TwilioHttpClient
    from twilio.rest import Client

    class Here(TwilioHttpClient):
        def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            return super().request(method, here, *args, **kwargs)

    here = url
    made: Any = Client("AC" + "0" * 32, "none", http_client=Here(timeout=timeout))
    return made.messages.create(to="+1", from_="+2", body="hi")


def sendgrid(url: str, timeout: float) -> object:
    import sendgrid as sdk

    made: Any = sdk.SendGridAPIClient("none", host=url)
    made.client.timeout = timeout
    return made.client.mail.send.post(request_body={})


def hubspot(url: str, timeout: float) -> object:
    from hubspot.crm.contacts import ApiClient, BasicApi, Configuration

    made: Any = BasicApi(ApiClient(Configuration(host=url)))
    return made.get_page(_request_timeout=timeout)


def notion(url: str, timeout: float) -> object:
    import notion_client as sdk

    made: Any = sdk.Client(auth="none", base_url=url, timeout_ms=int(timeout * 1000))
    return made.users.me()


def salesforce(url: str, timeout: float) -> object:
    import requests as http
    import simple_salesforce as sdk

    class Session(http.Session):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            return super().request(*args, **{**kwargs, "timeout": timeout})

    made: Any = sdk.Salesforce(instance_url=url, session_id="none", session=Session())
    made.base_url = f"{url}/"
    return made.query("SELECT Id FROM Account")


def elasticsearch(url: str, timeout: float) -> object:
    import elasticsearch as sdk

    return sdk.Elasticsearch(url, max_retries=0, request_timeout=timeout).info()


def opensearch(url: str, timeout: float) -> object:
    import opensearchpy as sdk

    return sdk.OpenSearch(url, max_retries=0, timeout=timeout).info()


def google_storage(url: str, timeout: float) -> object:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    made: Any = storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": url})
    return made.get_bucket("b", timeout=timeout, retry=None)


def google_bigquery(url: str, timeout: float) -> object:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import bigquery

    made: Any = bigquery.Client("p", AnonymousCredentials(), client_options={"api_endpoint": url})
    return made.get_table("p.d.t", timeout=timeout, retry=None)


def azure_blob(url: str, timeout: float) -> object:
    from azure.storage.blob import BlobServiceClient

    made: Any = BlobServiceClient(
        f"{url}/account",
        credential="bm9uZQ==",
        retry_total=0,
        connection_timeout=timeout,
        read_timeout=timeout,
    )
    return list(made.list_containers())


def botocore(url: str, timeout: float) -> object:
    import boto3
    from botocore.config import Config

    options = Config(retries={"total_max_attempts": 1}, connect_timeout=timeout, read_timeout=timeout)
    made: Any = boto3.client(
        "dynamodb",
        region_name="eu-west-1",
        endpoint_url=url,
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=options,
    )
    return made.list_tables()


PLAIN = {"requests": requests, "httpx": httpx, "aiohttp": aiohttp, "stripe": stripe}
FLAT = {
    "PyGithub": github,
    "slack_sdk": slack,
    "twilio": twilio,
    "sendgrid": sendgrid,
    "hubspot-api-client": hubspot,
    "notion-client": notion,
    "simple-salesforce": salesforce,
    "elasticsearch": elasticsearch,
    "opensearch-py": opensearch,
    "azure-storage-blob": azure_blob,
    "boto3": botocore,
}
GOOGLE = {"google-cloud-storage": google_storage, "google-cloud-bigquery": google_bigquery}
HEADERS_LOST = frozenset({"twilio", "simple-salesforce", "opensearch-py"})
"""Their exceptions keep no headers, so the wait is lost."""
