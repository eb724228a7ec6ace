"""What all handlers of the proxy share: settings, Kafka clients, the identity and the links of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ottla.client.cluster import Cluster
from ottla.edge.rest.bodies import DIGITS, INT32_MAX, INT64_MAX
from ottla.edge.rest.errors import not_found
from ottla.edge.rest.kafka import SERVICE, Identity, Kafka
from ottla.edge.rest.resources import Links
from ottla.edge.rest.settings import RestSettings
from ottla.edge.web.accept import choose_media_type
from ottla.edge.web.app import HttpError, Operation, Parameter
from ottla.edge.web.server import Listener

_P = ParamSpec("_P")
_T = TypeVar("_T")

JSON: Final = "application/json"

#: errors that every operation which asks the cluster can answer with
KAFKA_ERRORS: Final[Mapping[int, str]] = {
    400: "The request is not valid, or the cluster refuses it.",
    401: "Authentication failed (40101).",
    403: "The cluster does not authorize this (40301).",
    404: "The resource does not exist.",
    406: "The Accept header excludes the answer.",
    429: "A limit was exceeded (42901 to 42903).",
    500: "An error of Kafka (50002), or one that may pass (50003).",
    503: "No broker is available (50302).",
}


class Proxy:
    """The dependencies of all handlers."""

    def __init__(self, settings: RestSettings, kafka: Kafka, listener: Listener) -> None:
        self.settings = settings
        self.kafka = kafka
        self.listener = listener

    def identity(self, request: Request) -> Identity:
        """Return who the request acts for towards the cluster."""
        found = request.scope.get("identity")
        return found if isinstance(found, Identity) and (found.properties or found.token) else SERVICE

    async def call(
        self, request: Request, function: Callable[Concatenate[Cluster, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run an admin request for the identity of a request."""
        return await self.kafka.call(self.identity(request), function, *args, **kwargs)

    def base_url(self, request: Request) -> str:
        """Return the URL of this instance: the advertised one, else the one that the client used."""
        if self.settings.advertised_listeners:
            return self.settings.advertised_listeners[0].rstrip("/")
        if self.settings.host_name:
            return f"{self.listener.scheme}://{self.settings.host_name}:{self.listener.port}"
        return f"{request.url.scheme}://{request.url.netloc}"

    async def links(self, request: Request) -> Links:
        """Return the links of the cluster in the path. Raise HttpError 404 if it is another cluster."""
        cluster_id = await self.kafka.cluster_id(self.identity(request))
        wanted = request.path_params["cluster_id"]
        if wanted != cluster_id:
            raise not_found(f"Cluster {wanted} cannot be found.")
        return Links(self.base_url(request), cluster_id)


def with_accept(operation: Operation) -> Operation:
    """Return an operation of version 3 that answers 406 if the Accept header excludes its media types."""

    async def handle(request: Request) -> Response:
        if choose_media_type(request.headers.get("accept"), operation.produces) is None:
            raise HttpError(406, 406, f"HTTP 406 Not Acceptable: the answer is {operation.produces[0]}")
        return await operation.handler(request)

    return replace(operation, handler=handle)


def answer(found: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(found, status, headers)


def no_content() -> Response:
    return Response(status_code=204)


#: the body of a resource of version 3, for the OpenAPI document
def resource_schema(kind: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a resource."""
    metadata = {
        "type": "object", "required": ["self"],
        "properties": {"self": {"type": "string"}, "resource_name": {"type": ["string", "null"]}},
    }  # fmt: skip
    return {
        "type": "object",
        "title": kind,
        "required": ["kind", "metadata", "cluster_id", *properties],
        "properties": {"kind": {"const": kind}, "metadata": metadata, "cluster_id": TEXT, **properties},
    }


def list_schema(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a list of resources."""
    metadata = {
        "type": "object", "required": ["self"],
        "properties": {"self": {"type": "string"}, "next": {"type": ["string", "null"]}},
    }  # fmt: skip
    return {
        "type": "object",
        "required": ["kind", "metadata", "data"],
        "properties": {
            "kind": {"const": f"{item['title']}List"}, "metadata": metadata, "data": {"type": "array", "items": item},
        },
    }  # fmt: skip


TEXT: Final[Mapping[str, Any]] = {"type": "string"}
NULLABLE_TEXT: Final[Mapping[str, Any]] = {"type": ["string", "null"]}
INTEGER: Final[Mapping[str, Any]] = {"type": "integer"}
BOOLEAN: Final[Mapping[str, Any]] = {"type": "boolean"}
#: values of configs, which are text: numbers and booleans become text
CONFIG_VALUE: Final[Mapping[str, Any]] = {"type": ["string", "number", "boolean", "null"]}
INTEGERS: Final[Mapping[str, Any]] = {"type": "array", "items": INTEGER}
TEXTS: Final[Mapping[str, Any]] = {"type": "array", "items": TEXT}
RELATED: Final[Mapping[str, Any]] = {"type": "object", "required": ["related"], "properties": {"related": TEXT}}
NULLABLE_RELATED: Final[Mapping[str, Any]] = {"anyOf": [RELATED, {"type": "null"}]}


#: numbers in requests, which are those of Kafka's protocol
INT32: Final[Mapping[str, Any]] = {"type": "integer", "format": "int32", "minimum": 0, "maximum": INT32_MAX}
INT64: Final[Mapping[str, Any]] = {"type": "integer", "format": "int64", "minimum": 0, "maximum": INT64_MAX}


#: an integer that may also be sent as a string
DIGITS_OR_INT32: Final[Mapping[str, Any]] = {
    "type": ["integer", "string", "null"], "pattern": f"^{DIGITS.pattern}$", "minimum": 0, "maximum": INT32_MAX,
}  # fmt: skip


def or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a field for which null is the same as a missing one."""
    found = dict(schema)
    if isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    if "enum" in found:
        found["enum"] = [*found["enum"], None]
    return found


def request_schema(
    required: Mapping[str, Any], optional: Mapping[str, Any] | None = None, example: Any = None
) -> dict[str, Any]:
    """Return the JSON Schema of an object in a request, whose optional fields may be null. It has no other fields."""
    made = body_schema(required, {name: or_null(schema) for name, schema in (optional or {}).items()}, example)
    return made | {"additionalProperties": False}


def body_schema(
    required: Mapping[str, Any], optional: Mapping[str, Any] | None = None, example: Any = None
) -> dict[str, Any]:
    """Return the JSON Schema of an object. The page /docs shows the example."""
    made = {"type": "object", "required": [*required], "properties": {**required, **(optional or {})}}
    return made if example is None else made | {"examples": [example]}


def flag(name: str, description: str) -> Parameter:
    return Parameter(name, description, BOOLEAN)
