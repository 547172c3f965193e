"""The bodies that SDKs keep of an error answer, and the codes in them, read by shape."""

from __future__ import annotations

import json
from typing import Any, cast

from prefect_resilience.errors.classify.shapes import as_code, as_dict, as_status, read

_BODY_LIMIT = 64_000
_BODIES = ("data", "content", "json_body", "details", "info")
"""Where SDKs keep the body beside `body`: GitHub's; Salesforce's; Stripe's; Google's; Elastic's."""


def body_text(error: object) -> str:
    """The body of a response as far as it has been read already; reading more would be I/O."""
    for source in (read(error, "response"), error):
        for name in ("_content", "_body"):
            content = as_dict(read(source, "__dict__")).get(name)
            if isinstance(content, bytes) and len(content) <= _BODY_LIMIT:
                return content.decode("utf-8", "replace")
    kept = read(error, "body")
    if isinstance(kept, bytes) and len(kept) <= _BODY_LIMIT:
        return kept.decode("utf-8", "replace")
    return kept[:_BODY_LIMIT] if isinstance(kept, str) else ""


def error_objects(error: object, text: str, answered: bool) -> list[dict[Any, Any]]:
    """The objects that describe the error, from what the SDK kept and from the body's text.

    Without an answer's status, `data` or `details` may be anything, such as an order's: they are passed over.
    """
    kept = [read(error, "body")]
    if answered:
        kept += [read(error, name) for name in _BODIES]
        kept.append(read(read(error, "response"), "data"))  # Slack
    found = [_error_object(body) for body in (*kept, _parsed(text))]
    return [inner for inner in found if inner]


def provider_codes(error: object, objects: list[dict[Any, Any]]) -> list[str]:
    """Codes that a provider put on its exception or into the body, the most telling first."""
    own = (read(error, "error_code"), read(error, "code"), read(error, "type"))
    found = [as_code(code) for code in own]
    for inner in objects:
        found.append(as_code(as_dict(inner.get("details")).get("error_code")))
        found += [as_code(inner.get(name)) for name in ("code", "type", "status", "errorCode")]
        found.append(as_code(inner.get("error")))  # Slack: {"ok": false, "error": "ratelimited"}
    listed = [
        *_list(read(error, "errors")),
        *(each for inner in objects for each in _list(inner.get("errors"))),
    ]
    found += [as_code(as_dict(each).get("reason")) for each in listed]
    found += [as_code(as_dict(as_dict(each).get("extensions")).get("code")) for each in listed]  # GraphQL
    found += [as_code(as_dict(each).get("type")) for each in listed]
    found.append(as_code(read(read(error, "error"), "code")))  # Azure's ODataV4 error
    return [code for code in dict.fromkeys(found) if code is not None and as_status(code) is None]


def retry_infos(error: object, objects: list[dict[Any, Any]]) -> list[Any]:
    """Details of an error in Google's form: protobuf messages, or the JSON of them."""
    listed = [_list(read(error, "details"))] + [_list(inner.get("details")) for inner in objects]
    return [detail for details in listed for detail in details]


def _list(value: object) -> list[Any]:
    return list(cast("list[Any]", value))[:100] if isinstance(value, list | tuple) else []


def _error_object(body: Any) -> dict[Any, Any]:
    """The object that describes the error: the body's `error`, the first of a list, or the body itself."""
    listed = _list(body)
    plain = as_dict(listed[0] if listed else body)
    return as_dict(plain.get("error")) or plain


def _parsed(body: str) -> Any:
    if not body.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
