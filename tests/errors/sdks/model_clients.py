"""One call of each language model SDK, without its own retries."""

from typing import Any

MESSAGES: Any = [{"role": "user", "content": "hi"}]


def openai(url: str, timeout: float, stream: bool = False) -> object:
    import openai as sdk

    made = sdk.OpenAI(api_key="none", base_url=url, max_retries=0, timeout=timeout)
    answer: Any = made.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
    return list(answer) if stream else answer


def anthropic(url: str, timeout: float, stream: bool = False) -> object:
    import anthropic as sdk

    made = sdk.Anthropic(api_key="none", base_url=url, max_retries=0, timeout=timeout)
    answer: Any = made.messages.create(model="m", max_tokens=1, messages=MESSAGES, stream=stream)
    return list(answer) if stream else answer


def groq(url: str, timeout: float, stream: bool = False) -> object:
    import groq as sdk

    made = sdk.Groq(api_key="none", base_url=url, max_retries=0, timeout=timeout)
    answer: Any = made.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
    return list(answer) if stream else answer


def mistral(url: str, timeout: float) -> object:
    from mistralai.client import Mistral

    made: Any = Mistral(api_key="none", server_url=url, timeout_ms=int(timeout * 1000))
    return made.chat.complete(model="m", messages=MESSAGES)


def cohere(url: str, timeout: float) -> object:
    import cohere as sdk

    made = sdk.ClientV2(api_key="none", base_url=url, timeout=timeout, max_retries=0)
    return made.chat(model="m", messages=MESSAGES)


def genai(url: str, timeout: float) -> object:
    from google import genai as sdk
    from google.genai import types

    options = types.HttpOptions(base_url=url, timeout=int(timeout * 1000))
    made: Any = sdk.Client(api_key="none", http_options=options)
    return made.models.generate_content(model="m", contents="hi")


def litellm(url: str, timeout: float) -> object:
    import litellm as sdk

    sdk.suppress_debug_info = True
    return sdk.completion(
        model="openai/m",
        messages=MESSAGES,
        api_base=url,
        api_key="none",
        num_retries=0,
        max_retries=0,
        timeout=timeout,
    )


MODELS = {
    "openai": openai,
    "anthropic": anthropic,
    "groq": groq,
    "mistralai": mistral,
    "cohere": cohere,
    "google-genai": genai,
    "litellm": litellm,
}
