"""The clients with which a function sends over HTTP: each posts a message, or gets a page, and raises."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import httpx
import httpx2
import openai
import requests
import urllib3
from requests.adapters import HTTPAdapter

from prefect_resilience.effects import send_idempotency_key
from tests.durable.effects.ways.http_receiver import MESSAGE
from tests.durable.effects.ways.world import World

INNER_TRIES = 2


@lru_cache
def certificates() -> ssl.SSLContext:
    """Nothing here speaks TLS, and reading the certificates for each client would be most of the time."""
    return ssl.create_default_context()


def hooks(world: World) -> dict[str, Any]:
    """With the witness, the hook that also brings the key along."""
    return {"event_hooks": {"request": [send_idempotency_key]} if world.witness else {}}


class Client:
    """Sends for one run. `post` and `get` return what they got, or for an async client an awaitable."""

    isasync = False
    witnessed = False
    """Whether a hook of ours sees what leaves."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.read_seconds = world.read_seconds

    @property
    def url(self) -> str:
        return self.world.receiver.url

    def post(self, message: str) -> Any:
        raise NotImplementedError

    def get(self) -> Any:
        raise NotImplementedError

    def post_late(self, message: str) -> Any:
        """A post with something long before it."""
        self.world.wait_to_send()
        return self.post(message)

    def close(self) -> Any:
        """Give back what it holds."""


class OfHttpx(Client):
    """What both of httpx's clients have in common."""

    witnessed = True
    kind: Any

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.client = self.kind(
            verify=certificates(),
            trust_env=False,
            follow_redirects=True,
            timeout=self.read_seconds,
            transport=self.transport(),
            **hooks(world),
        )

    def transport(self) -> Any:
        return None

    def answer(self, response: Any) -> str:
        response.raise_for_status()
        return response.json()["id"]


class Httpx(OfHttpx):
    kind = httpx.Client

    def post(self, message: str) -> str:
        return self.answer(self.client.post(self.url, headers={MESSAGE: message}, json={"message": message}))

    def get(self) -> str:
        return self.answer(self.client.get(self.url))

    def close(self) -> None:
        self.client.close()


class HttpxAsync(OfHttpx):
    isasync = True
    kind = httpx.AsyncClient

    async def post(self, message: str) -> str:
        response = await self.client.post(self.url, headers={MESSAGE: message}, json={"message": message})
        return self.answer(response)

    async def get(self) -> str:
        return self.answer(await self.client.get(self.url))

    async def post_late(self, message: str) -> str:
        while self.world.first:
            self.world.held.set()
            await asyncio.sleep(3600)
        return await self.post(message)

    async def close(self) -> None:
        await self.client.aclose()


# -- SDKs that try again by themselves


class RetryingTransport(httpx.BaseTransport):
    """What an SDK mounts below its httpx client: a hook of the client sees one request, whatever leaves."""

    def __init__(self, world: World) -> None:
        self.inner = httpx.HTTPTransport(verify=certificates(), trust_env=False)
        self.world = world

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(INNER_TRIES - 1):
            try:
                return self.inner.handle_request(request)
            except httpx.TransportError:
                pass
            # Outside of the handler: the first error is not to be found in the second one's context.
            self.world.receiver.tried()
        return self.inner.handle_request(request)

    def close(self) -> None:
        self.inner.close()


class AsyncRetryingTransport(httpx.AsyncBaseTransport):
    def __init__(self, world: World) -> None:
        self.inner = httpx.AsyncHTTPTransport(verify=certificates(), trust_env=False)
        self.world = world

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(INNER_TRIES - 1):
            try:
                return await self.inner.handle_async_request(request)
            except httpx.TransportError:
                pass
            self.world.receiver.tried()
        return await self.inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self.inner.aclose()


class HttpxTransportRetries(Httpx):
    def transport(self) -> httpx.BaseTransport:
        return RetryingTransport(self.world)


class HttpxAsyncTransportRetries(HttpxAsync):
    def transport(self) -> httpx.AsyncBaseTransport:
        return AsyncRetryingTransport(self.world)


class HttpxLoop(Httpx):
    """An SDK whose `post` is a loop around its httpx client."""

    def post(self, message: str) -> str:
        for _ in range(INNER_TRIES - 1):
            try:
                return super().post(message)
            except httpx.HTTPError:
                pass
            self.world.receiver.tried()
        return super().post(message)


class Sdk(openai.OpenAI):
    """The SDK, which does not wait between two tries."""

    between: Callable[[], None]

    def _sleep_for_retry(self, **_: Any) -> None:
        self.between()


class OpenAI(Client):
    witnessed = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.http = httpx2.Client(verify=certificates(), trust_env=False, **hooks(world))
        self.client = Sdk(
            api_key="k", base_url=self.url, http_client=self.http, max_retries=1, timeout=self.read_seconds
        )
        self.client.between = world.receiver.tried

    def post(self, message: str) -> str:
        messages: Any = [{"role": "user", "content": message}]
        made = self.client.chat.completions.create(
            model="m", messages=messages, extra_headers={MESSAGE: message}
        )
        return made.id

    def close(self) -> None:
        self.http.close()


# -- others


class Requests(Client):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.session = requests.Session()
        self.session.trust_env = False

    def post(self, message: str) -> str:
        response = self.session.post(
            self.url, headers={MESSAGE: message}, json={"message": message}, timeout=self.read_seconds
        )
        response.raise_for_status()
        return response.json()["id"]

    def get(self) -> str:
        response = self.session.get(self.url, timeout=self.read_seconds)
        response.raise_for_status()
        return response.json()["id"]

    def close(self) -> None:
        self.session.close()


class TryAgain(urllib3.Retry):
    """urllib3's own retries, which tell the run that there is another try."""

    world: Any = None

    def new(self, **changes: Any) -> TryAgain:
        made = super().new(**changes)
        made.world = self.world
        return made

    def increment(self, *args: Any, **kwargs: Any) -> urllib3.Retry:
        left = super().increment(*args, **kwargs)
        self.world.receiver.tried()
        return left


class RequestsRetrying(Requests):
    """requests with urllib3's retries mounted, for POST too."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        retries = TryAgain(INNER_TRIES - 1, allowed_methods=None, status_forcelist=(429, 503))
        retries.world = world
        self.session.mount("http://", HTTPAdapter(max_retries=retries))


class RequestsInThread(Requests):
    """A blocking client in an async function."""

    isasync = True

    async def post(self, message: str) -> str:  # type: ignore[override]
        return await asyncio.to_thread(self.post_here, super().post, message)

    async def post_late(self, message: str) -> str:
        return await asyncio.to_thread(self.post_here, super().post, message, True)

    def post_here(self, post: Callable[[str], str], message: str, late: bool = False) -> str:
        with self.world.going_on():
            if late:
                self.world.wait_to_send()
            return post(message)


class Urllib(Client):
    def post(self, message: str) -> str:
        body = json.dumps({"message": message}).encode()
        request = urllib.request.Request(self.url, data=body, headers={MESSAGE: message})
        with urllib.request.urlopen(request, timeout=self.read_seconds) as response:
            return json.load(response)["id"]

    def get(self) -> str:
        with urllib.request.urlopen(self.url, timeout=self.read_seconds) as response:
            return json.load(response)["id"]
