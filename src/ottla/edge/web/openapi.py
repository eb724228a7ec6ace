"""The OpenAPI 3.1 document of a service, made from its table of operations, and the page that shows it.

The routes and the document come from the same rows (`Operation`), so that the document cannot name a path that does not
exist or leave one out. `document_operations` returns two more operations, which need no authentication:

    GET /openapi.json    the document
    GET /docs            a page that lists the operations and sends requests from the browser

The page is one HTML file without any reference to another server. Its Content-Security-Policy allows its own script and
style by their hashes and connections to the service itself, nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.web.app import Operation, Parameter

_ERROR: Final = "Error"
_ERROR_SCHEMA: Final = {
    "type": "object",
    "description": "What was wrong with a request. The first three digits of the code are mostly the status.",
    "properties": {"error_code": {"type": "integer"}, "message": {"type": "string"}},
    "required": ["error_code", "message"],
}
#: authentication method -> name and security scheme
_SCHEMES: Final = {
    "BASIC": ("basic", {"type": "http", "scheme": "basic", "description": "A user name and a password."}),
    "BEARER": ("bearer", {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "A signed token."}),
}
_VARIABLE: Final = re.compile(r"\{([^}]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What the document says besides the operations."""

    title: str
    version: str
    #: descriptions of the variable segments of paths, by their names
    parameters: Sequence[Parameter] = ()
    #: BASIC, BEARER: an operation that is not public accepts each of them
    authentication: Sequence[str] = ()
    error_media_types: Sequence[str] = ("application/json",)


def describe(operations: Sequence[Operation], api: Api) -> dict[str, Any]:
    """Return the OpenAPI document of these operations."""
    schemes = dict(_SCHEMES[method] for method in api.authentication)
    described = {parameter.name: parameter for parameter in api.parameters}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        row = _describe_operation(operation, described, api.error_media_types, has_authentication=bool(schemes))
        paths.setdefault(operation.path, {})[operation.method.lower()] = row
    ids = [row["operationId"] for path in paths.values() for row in path.values()]
    assert len(ids) == len(set(ids)), "two operations have the same id"
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": api.title, "version": api.version},
        # The server that the document was read from.
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {"schemas": {_ERROR: _ERROR_SCHEMA}},
    }
    if schemes:
        document["components"]["securitySchemes"] = schemes
        document["security"] = [{name: []} for name in schemes]
    return document


def _describe_operation(
    operation: Operation,
    described: Mapping[str, Parameter],
    error_media_types: Sequence[str],
    *,
    has_authentication: bool,
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "operationId": operation_id(operation),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _describe_answers(operation, error_media_types, has_authentication=has_authentication),
    }
    parameters = [
        _describe_parameter(described.get(name, Parameter(name, "")), "path")
        for name in _VARIABLE.findall(operation.path)
    ]
    parameters += [_describe_parameter(parameter, "query") for parameter in operation.query]
    if parameters:
        row["parameters"] = parameters
    if operation.body is not None:
        row["requestBody"] = {
            "required": operation.body_required,
            "content": {media_type: {"schema": operation.body} for media_type in operation.consumes},
        }
    if has_authentication and operation.is_public:
        row["security"] = []
    return row


def operation_id(operation: Operation) -> str:
    """Return a name for the operation that code generators can use.

    >>> async def handler(request: Request) -> Response: ...
    >>> row = Operation(method="GET", path="/topics/{topic}/configs:alter", handler=handler, summary="", tag="")
    >>> operation_id(row)
    'get_topics_by_topic_configs_alter'
    """
    words = [operation.method.lower()]
    for segment in operation.path.strip("/").split("/"):
        words.append("all" if segment == "-" else _VARIABLE.sub(r"by_\1", segment))
    return re.sub(r"\W+", "_", "_".join(words)).strip("_") if operation.path != "/" else f"{words[0]}_root"


def _describe_parameter(parameter: Parameter, place: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": parameter.name, "in": place, "schema": dict(parameter.schema)}
    if place == "path":
        row["required"] = True
    if parameter.description:
        row["description"] = parameter.description
    return row


def _describe_answers(
    operation: Operation, error_media_types: Sequence[str], *, has_authentication: bool
) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, schema in operation.answers.items():
        row: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if schema is not None:
            row["content"] = {media_type: {"schema": schema} for media_type in operation.produces}
        answers[str(status)] = row
    reference = {"schema": {"$ref": f"#/components/schemas/{_ERROR}"}}
    content = dict.fromkeys(error_media_types, reference)
    errors = {**_errors_of_all(operation, has_authentication=has_authentication), **operation.errors}
    for status in sorted(errors):
        # An answer of the operation can have this status, too, such as 503 of a service that is not healthy.
        answers.setdefault(str(status), {"description": errors[status], "content": content})
    return answers


def _errors_of_all(operation: Operation, *, has_authentication: bool) -> dict[int, str]:
    """Return the errors that `app.py` answers with for every service, and when."""
    errors = {500: "An error of this service."}
    if "{" in operation.path:
        errors[400] = "The path is not UTF-8."
    if operation.method not in ("GET", "HEAD"):
        errors[403] = "A web page of another origin may not send it (40301)."
    if operation.body is not None:
        errors |= {
            400: "The request is not valid.", 408: "The body does not arrive in time.", 413: "The body is too large.",
            415: "The Content-Type is not one of these, or the body is compressed.",
            503: "The bodies of all requests are too large at the moment.",
        }  # fmt: skip
    if not operation.is_public:
        errors[429] = "More requests than allowed (42901)."
        if has_authentication:
            errors[401] = "The client is not authenticated."
    return errors


# -- the operations that serve it -------------------------------------------------------------------------------------


def document_operations(operations: Sequence[Operation], api: Api) -> list[Operation]:
    """Return the operations that serve the document and the page, which the document describes, too."""
    text, page, policy = b"", *_page(api.title)

    async def get_document(request: Request) -> Response:
        return Response(text, media_type="application/json", headers={"x-content-type-options": "nosniff"})

    async def get_page(request: Request) -> Response:
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
        return Response(page, media_type="text/html", headers=headers | {"referrer-policy": "no-referrer"})

    own = [
        Operation(
            method="GET", path="/openapi.json", handler=get_document, tag="About", is_public=True,
            summary="Get this OpenAPI document.", answers={200: {"type": "object"}},
        ),
        Operation(
            method="GET", path="/docs", handler=get_page, tag="About", is_public=True, produces=("text/html",),
            summary="Get a page that lists all operations and sends requests.", answers={200: {"type": "string"}},
        ),
    ]  # fmt: skip
    document = describe([*operations, *own], api)
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return own


def _page(title: str) -> tuple[bytes, str]:
    """Return the page and its Content-Security-Policy."""
    parts = files("ottla.edge.web") / "docs_page"
    page, style, script = ((parts / name).read_text("utf-8") for name in ("page.html", "page.css", "page.js"))
    escaped = title.replace("&", "&amp;").replace("<", "&lt;")
    page = page.replace("{{title}}", escaped).replace("{{style}}", style).replace("{{script}}", script)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode(), policy


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
