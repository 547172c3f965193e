"""Each verdict with the act that shows the SDK's error."""

import tomllib
from pathlib import Path

from prefect_resilience import ErrorCategory
from tests.errors.more_sdks import brokers, calls, services, stores
from tests.errors.more_sdks.acts import Situations
from tests.errors.sdks.model import Case, Expected

VERDICTS = Path(__file__).with_name("verdicts.toml")

ACTS: dict[str, Situations] = {
    "aio-pika": brokers.AIO_PIKA,
    "aiokafka": brokers.AIOKAFKA,
    "aiomqtt": brokers.AIOMQTT,
    "azure-identity": services.AZURE_IDENTITY,
    "box-sdk-gen": services.BOX,
    "braintree": services.BRAINTREE,
    "couchbase": stores.COUCHBASE,
    "deepl": services.DEEPL,
    "dropbox": services.DROPBOX,
    "google-api-python-client": services.GOOGLE,
    "grpclib": calls.GRPCLIB,
    "huggingface-hub": services.HUGGINGFACE,
    "meilisearch": services.MEILISEARCH,
    "mysql-connector-python": stores.MYSQL,
    "oci": services.OCI,
    "pinecone": services.PINECONE,
    "plaid-python": services.PLAID,
    "pulsar-client": brokers.PULSAR,
    "pymilvus": stores.MILVUS,
    "python-arango": stores.ARANGO,
    "qdrant-client": services.QDRANT,
    "resend": services.RESEND,
    "temporalio": calls.TEMPORAL,
    "thrift": calls.THRIFT,
    "tweepy": services.TWEEPY,
    "websockets": calls.WEBSOCKETS,
    "confluent-kafka": brokers.CONFLUENT,
    "gql": services.GQL,
    "mistralai": services.MISTRAL,
    "PyMySQL": stores.PYMYSQL,
}


def expected(verdict: str) -> Expected:
    """A verdict as it is written: "rate_limit, retry after 3 s"."""
    category, _, decision = verdict.partition(", ")
    again, _, wait = decision.partition(" after ")
    return Expected(
        ErrorCategory(category), float(wait.removesuffix(" s")) if wait else None, again == "retry"
    )


def verdicts() -> dict[tuple[str, str], tuple[Expected, str]]:
    """For each SDK and situation the verdict, and the page that it rests on."""
    found: dict[tuple[str, str], tuple[Expected, str]] = {}
    for package, situations in tomllib.loads(VERDICTS.read_text()).items():
        general = situations.pop("page")
        for situation, verdict in situations.items():
            text, page = verdict if isinstance(verdict, list) else (verdict, general)
            found[package, situation] = expected(text), page
    return found


def more_cases() -> list[Case]:
    return [
        Case(package, situation, ACTS[package][situation], verdict)
        for (package, situation), (verdict, _page) in verdicts().items()
    ]
