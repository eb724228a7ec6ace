"""The OpenAPI document: its structure, and that it says the same as the routes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.web.app import App, HttpError, Operation, Parameter, Router
from ottla.edge.web.openapi import Api, describe, document_operations

#: the parts of OpenAPI 3.1 that the document uses; nothing else is allowed in it
STRUCTURE: dict[str, Any] = {
    "type": "object",
    "required": ["openapi", "info", "paths"],
    "additionalProperties": False,
    "properties": {
        "openapi": {"pattern": r"^3\.1\.\d+$"},
        "info": {
            "type": "object",
            "required": ["title", "version"],
            "additionalProperties": False,
            "properties": {name: {"type": "string"} for name in ("title", "version", "description")},
        },
        "servers": {
            "type": "array",
            "items": {"required": ["url"], "properties": {"url": {"type": "string"}}, "additionalProperties": False},
        },
        "tags": {"type": "array", "items": {"required": ["name"], "additionalProperties": {"type": "string"}}},
        "security": {"$ref": "#/$defs/security"},
        "paths": {
            "type": "object",
            "propertyNames": {"pattern": "^/"},
            "additionalProperties": {
                "type": "object",
                "propertyNames": {"enum": ["get", "put", "post", "delete", "options", "head", "patch", "trace"]},
                "additionalProperties": {"$ref": "#/$defs/operation"},
            },
        },
        "components": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "schemas": {"propertyNames": {"pattern": "^[a-zA-Z0-9._-]+$"}, "type": "object"},
                "securitySchemes": {
                    "additionalProperties": {
                        "required": ["type", "scheme"],
                        "properties": {
                            "type": {"const": "http"},
                            "scheme": {"enum": ["basic", "bearer"]},
                            "bearerFormat": {"type": "string"},
                            "description": {"type": "string"},
                        },
                        "additionalProperties": False,
                    }
                },
            },
        },
    },
    "$defs": {
        "security": {"type": "array", "items": {"additionalProperties": {"type": "array", "maxItems": 0}}},
        "content": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": "^[a-z]+/[a-z0-9.+-]+$"},
            "additionalProperties": {
                "required": ["schema"],
                "properties": {"schema": {"type": ["object", "boolean"]}},
                "additionalProperties": False,
            },
        },
        "operation": {
            "type": "object",
            "required": ["responses", "operationId", "summary", "tags"],
            "additionalProperties": False,
            "properties": {
                "operationId": {"type": "string", "pattern": r"^[a-z]\w*$"},
                "summary": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "security": {"$ref": "#/$defs/security"},
                "parameters": {
                    "type": "array",
                    "items": {
                        "required": ["name", "in", "schema"],
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string"},
                            "in": {"enum": ["path", "query"]},
                            "required": {"type": "boolean"},
                            "description": {"type": "string"},
                            "schema": {"type": ["object", "boolean"]},
                        },
                        "if": {"properties": {"in": {"const": "path"}}},
                        "then": {"required": ["required"], "properties": {"required": {"const": True}}},
                    },
                },
                "requestBody": {
                    "required": ["content"],
                    "additionalProperties": False,
                    "properties": {"content": {"$ref": "#/$defs/content"}, "required": {"type": "boolean"}},
                },
                "responses": {
                    "type": "object",
                    "minProperties": 1,
                    "propertyNames": {"pattern": "^([1-5][0-9][0-9]|default)$"},
                    "additionalProperties": {
                        "required": ["description"],
                        "additionalProperties": False,
                        "properties": {"description": {"type": "string"}, "content": {"$ref": "#/$defs/content"}},
                    },
                },
            },
        },
    },
}


async def handler(request: Request) -> Response:
    return Response("{}")


def operation(method: str, path: str, **rest: Any) -> Operation:
    return Operation(**{"method": method, "path": path, "handler": handler, "summary": "Do.", "tag": "A", **rest})


OPERATIONS = [
    operation("GET", "/", is_public=True),
    operation("GET", "/topics/{topic}/configs", query=[Parameter("deep", "All of it.", {"type": "boolean"})]),
    operation("GET", "/topics/-/configs", tag="B", produces=("application/json", "application/vnd.x.v1+json")),
    operation("POST", "/topics/{topic}/configs:alter", body={"type": "object"}, errors={404: "No such topic."}),
    operation(
        "PUT", "/x/{a}/{b}", body={"$ref": "#/components/schemas/Error"}, body_required=False, answers={204: None},
        consumes=("application/vnd.x.v1+json", "application/json"),
    ),
    operation("DELETE", "/x/{a}/{b}"),
]  # fmt: skip
API = Api(
    title="Shop & <more>",
    version="1.2",
    parameters=[Parameter("topic", "Name of a topic.", {"type": "string", "maxLength": 249})],
    authentication=("BASIC", "BEARER"),
    error_media_types=("application/vnd.x.v1+json",),
)


def check_document(document: dict[str, Any]) -> None:
    """Raise if it is not an OpenAPI document, or one of its schemas is not a JSON Schema, or a reference is broken."""
    Draft202012Validator.check_schema(STRUCTURE)
    Draft202012Validator(STRUCTURE).validate(document)
    for node in _nodes(document):
        if "schema" in node and isinstance(node["schema"], dict):
            Draft202012Validator.check_schema(node["schema"])
        if isinstance(node.get("$ref"), str):
            target: Any = document
            for key in node["$ref"].removeprefix("#/").split("/"):
                target = target[key]
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for path, methods in document["paths"].items():
        for row in methods.values():
            named = [each["name"] for each in row.get("parameters", []) if each["in"] == "path"]
            assert named == re.findall(r"\{([^}]+)\}", path)
            assert set(row["tags"]) <= {tag["name"] for tag in document["tags"]}


def _nodes(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [node for each in value for node in _nodes(each)]
    if not isinstance(value, dict):
        return []
    return [value, *(node for each in value.values() for node in _nodes(each))]


def get(path: str, api: Api = API) -> httpx.Response:
    def error_response(error: HttpError) -> Response:
        return Response(error.message, error.status)

    async def refuse(request: Request) -> None:
        raise HttpError(401, 40101, "no")

    app = App(
        Router([*OPERATIONS, *document_operations(OPERATIONS, api)]),
        error_response=error_response, describe_error=lambda error: None, authenticate=refuse,
    )  # fmt: skip

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get(path)

    return asyncio.run(ask())


@pytest.mark.parametrize("api", [API, Api(title="t", version="1")])
def test_document_is_openapi(api: Api) -> None:
    check_document(describe(OPERATIONS, api))


def test_document_and_routes_name_the_same_operations() -> None:
    document = get("/openapi.json").json()
    check_document(document)
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(row.method, row.path) for row in OPERATIONS} | {("GET", "/openapi.json"), ("GET", "/docs")}
    router = Router(OPERATIONS)
    for row in OPERATIONS:
        assert router.find(row.method, row.path.replace("{", "").replace("}", ""))[0] is row


def test_rows_are_described_with_parameters_bodies_answers_and_errors() -> None:
    paths = describe(OPERATIONS, API)["paths"]
    assert paths["/topics/{topic}/configs"]["get"]["parameters"] == [
        {
            "name": "topic", "in": "path", "schema": {"type": "string", "maxLength": 249}, "required": True,
            "description": "Name of a topic.",
        },
        {"name": "deep", "in": "query", "schema": {"type": "boolean"}, "description": "All of it."},
    ]  # fmt: skip
    error = {"application/vnd.x.v1+json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    alter = paths["/topics/{topic}/configs:alter"]["post"]
    assert alter["requestBody"] == {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
    assert alter["responses"]["404"] == {"description": "No such topic.", "content": error}
    assert alter["responses"]["401"]["content"] == alter["responses"]["429"]["content"] == error
    put = paths["/x/{a}/{b}"]["put"]
    assert list(put["requestBody"]["content"]) == ["application/vnd.x.v1+json", "application/json"]
    assert put["responses"]["204"] == {"description": "No Content"}
    assert list(paths["/topics/-/configs"]["get"]["responses"]["200"]["content"]) == [
        "application/json",
        "application/vnd.x.v1+json",
    ]


def test_public_operations_need_no_credentials() -> None:
    document = describe(OPERATIONS, API)
    assert document["security"] == [{"basic": []}, {"bearer": []}]
    assert document["paths"]["/"]["get"]["security"] == []
    assert "401" not in document["paths"]["/"]["get"]["responses"]
    assert "security" not in document["paths"]["/topics/-/configs"]["get"]
    assert "security" not in describe(OPERATIONS, Api(title="t", version="1"))


def test_operation_ids_differ() -> None:
    with pytest.raises(AssertionError, match="same id"):
        describe([operation("GET", "/a-b"), operation("GET", "/a:b")], API)


class _Page(HTMLParser):
    """Collects what the page refers to, and its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.parts: dict[str, str] = {}
        self.ids: set[str] = set()
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.references += [value or "" for name, value in attributes if name in ("src", "href", "action")]
        self.handlers += [name for name, _ in attributes if name.startswith("on") or name == "style"]
        self.ids |= {value or "" for name, value in attributes if name == "id"}

    def handle_data(self, data: str) -> None:
        self.parts[self._inside] = self.parts.get(self._inside, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def test_page_is_self_contained_and_its_policy_allows_only_its_own_parts() -> None:
    answer = get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = _Page(answer.text)
    assert page.references == ["data:,", "openapi.json"]
    assert page.handlers == []
    assert page.parts["title"] == "Shop & <more>"
    assert not re.findall(r"https?://", answer.text)
    policy = answer.headers["content-security-policy"]
    for name, directive in (("script", "script-src"), ("style", "style-src")):
        digest = base64.b64encode(hashlib.sha256(page.parts[name].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "innerHTML" not in answer.text
    for name in re.findall(r'getElementById\("(\w+)"\)', page.parts["script"]):
        assert name in page.ids


def test_document_is_compact_json_that_browsers_do_not_guess() -> None:
    answer = get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert json.loads(answer.text)["info"] == {"title": "Shop & <more>", "version": "1.2"}
