"""What all handlers of the proxy share: settings, Kafka clients, the identity and the links of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
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
from ottla.edge.web.authentication import identity_of
from ottla.edge.web.json_schemas import BOOLEAN, NULLABLE_TEXT, TEXT, Schema, list_of, object_of, or_null
from ottla.edge.web.server import Listener

_P = ParamSpec("_P")
_T = TypeVar("_T")

CLUSTER: Final = "/v3/clusters/{cluster_id}"

#: answers a request of version 3 with the links of its cluster
ClusterHandler = Callable[[Request, Links], Awaitable[Response]]

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
        found = identity_of(request)
        return found if found.properties or found.token else SERVICE

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
        """Return the links of the cluster. Raise HttpError 404 if the path names another cluster."""
        cluster_id = await self.kafka.cluster_id(self.identity(request))
        wanted = request.path_params.get("cluster_id", cluster_id)
        if wanted != cluster_id:
            raise not_found(f"Cluster {wanted} cannot be found.")
        return Links(self.base_url(request), cluster_id)

    def operation(
        self,
        name: str,
        method_and_path: str,
        handler: ClusterHandler,
        summary: str,
        answer: Schema | None = None,
        **more: Any,
    ) -> Operation:
        """Return an operation of version 3. ``answer`` is the JSON Schema of status 200; without it, the status is 204.

        A path that does not begin with a slash is that of a resource of the cluster. Before ``handler``, the Accept
        header is checked (406) and the cluster in the path (404).
        """
        method, path = method_and_path.split(" ")
        made = {"answers": {204: None} if answer is None else {200: answer}, "errors": KAFKA_ERRORS, **more}

        async def handle(request: Request) -> Response:
            offered = request.scope["operation"].produces
            if choose_media_type(request.headers.get("accept"), offered) is None:
                raise HttpError(406, 406, f"HTTP 406 Not Acceptable: the answer is {offered[0]}")
            return await handler(request, await self.links(request))

        return Operation(
            name=f"api.v3.{name}", method=method, path=path if path.startswith("/") else f"{CLUSTER}/{path}",
            handler=handle, summary=summary, **made,
        )  # fmt: skip


def answer(found: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(found, status, headers)


def no_content() -> Response:
    return Response(status_code=204)


#: the body of a resource of version 3, for the OpenAPI document
def resource_schema(kind: str, properties: Schema) -> dict[str, Any]:
    """Return the JSON Schema of a resource."""
    metadata = object_of({"self": TEXT}, {"resource_name": NULLABLE_TEXT})
    found = object_of({"kind": {"const": kind}, "metadata": metadata, "cluster_id": TEXT, **properties})
    return found | {"title": kind}


def list_schema(item: Schema) -> dict[str, Any]:
    """Return the JSON Schema of a list of resources."""
    metadata = object_of({"self": TEXT}, {"next": NULLABLE_TEXT})
    return object_of({"kind": {"const": f"{item['title']}List"}, "metadata": metadata, "data": list_of(item)})


#: values of configs, which are text: numbers and booleans become text
CONFIG_VALUE: Final[Schema] = {"type": ["string", "number", "boolean", "null"]}
RELATED: Final[Schema] = object_of({"related": TEXT})
NULLABLE_RELATED: Final[Schema] = {"anyOf": [RELATED, {"type": "null"}]}
#: numbers in requests, which are those of Kafka's protocol
INT32: Final[Schema] = {"type": "integer", "format": "int32", "minimum": 0, "maximum": INT32_MAX}
INT64: Final[Schema] = {"type": "integer", "format": "int64", "minimum": 0, "maximum": INT64_MAX}


#: an integer that may also be sent as a string
DIGITS_OR_INT32: Final[Schema] = {
    "type": ["integer", "string", "null"], "pattern": f"^{DIGITS.pattern}$", "minimum": 0, "maximum": INT32_MAX,
}  # fmt: skip


def request_schema(required: Schema, optional: Schema | None = None, example: Any = None) -> dict[str, Any]:
    """Return the JSON Schema of an object in a request, whose optional fields may be null. It has no other fields."""
    made = object_of(required, {name: or_null(schema) for name, schema in (optional or {}).items()}, example)
    return made | {"additionalProperties": False}


def flag(name: str, description: str) -> Parameter:
    return Parameter(name, description, BOOLEAN)
