"""Which operation a request belongs to, and the limits before it is called."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.web.app import App, HttpError, Operation, Router


async def echo(request: Request) -> Response:
    body = await request.body()
    return Response(json.dumps({"path": request.scope["operation"].path, **request.path_params, "bytes": len(body)}))


def operation(method: str, path: str, body_bytes_max: int = 100) -> Operation:
    return Operation(method=method, path=path, handler=echo, summary="", tag="", body_bytes_max=body_bytes_max)


ROUTER = Router(
    [
        operation("GET", "/"),
        operation("GET", "/subjects"),
        operation("GET", "/subjects/{subject}/versions/{version}"),
        operation("DELETE", "/subjects/{subject}/versions/{version}"),
        operation("GET", "/subjects/{subject}/versions"),
        operation("GET", "/topics/-/configs"),
        operation("GET", "/topics/{topic}/configs"),
        operation("GET", "/topics/-/{other}/x"),
    ]
)


@pytest.mark.parametrize(
    ("path", "template", "values"),
    [
        ("/", "/", {}),
        ("/subjects/", "/subjects", {}),
        ("/subjects/a%2Fb/versions/1", "/subjects/{subject}/versions/{version}", {"subject": "a/b", "version": "1"}),
        ("/subjects/%3A.x%3Aa/versions/", "/subjects/{subject}/versions", {"subject": ":.x:a"}),
        ("/topics/-/configs", "/topics/-/configs", {}),
        ("/topics/-a/configs", "/topics/{topic}/configs", {"topic": "-a"}),
        ("/topics/-/y/x", "/topics/-/{other}/x", {"other": "y"}),
    ],
)
def test_path_selects_an_operation_segment_by_segment(path: str, template: str, values: dict[str, str]) -> None:
    found, got = ROUTER.find("GET", path)
    assert (found.path, got) == (template, values)


@pytest.mark.parametrize("path", ["/subject", "/subjects/a/b", "/subjects//versions", "//", "/subjects/a/versions/1/x"])
def test_unknown_path_is_404(path: str) -> None:
    with pytest.raises(HttpError) as error:
        ROUTER.find("GET", path)
    assert error.value.status == 404


def test_unknown_method_is_405_and_names_the_methods() -> None:
    with pytest.raises(HttpError) as error:
        ROUTER.find("PUT", "/subjects/a/versions/1")
    assert (error.value.status, error.value.headers) == (405, {"allow": "DELETE, GET"})


def app() -> App:
    return App(
        ROUTER,
        error_response=lambda error: Response(error.message, error.status, error.headers),
        describe_error=lambda error: None,
    )


def ask(method: str, path: str, content: bytes | AsyncIterator[bytes] | None = None) -> httpx.Response:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app()), base_url="http://test") as client:
            return await client.request(method, path, content=content)

    return asyncio.run(send())


def test_encoded_slash_stays_inside_of_a_name() -> None:
    answer = ask("GET", "/subjects/a%2Fb/versions/latest")
    assert answer.json()["subject"] == "a/b"


def test_body_above_the_limit_is_refused_by_its_length_and_by_its_bytes() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 50

    assert ask("DELETE", "/subjects/a/versions/1", b"x" * 101).status_code == 413
    assert ask("DELETE", "/subjects/a/versions/1", parts()).status_code == 413
    assert ask("DELETE", "/subjects/a/versions/1", b"x" * 100).json()["bytes"] == 100
