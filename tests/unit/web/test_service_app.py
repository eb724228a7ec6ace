"""What every service does with requests: rates, pages of other origins, metrics, health, bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from test_openapi import check_document

from ottla.edge.web import app as app_module
from ottla.edge.web.app import App, HttpError, Operation
from ottla.edge.web.service import Service
from ottla.edge.web.settings import WebSettings
from ottla.security.password_hashes import hash_password, user_line


async def hello(request: Request) -> Response:
    return JSONResponse({"bytes": len(await request.body())})


def error_response(error: HttpError) -> Response:
    body = json.dumps({"error_code": error.error_code, "message": error.message})
    return Response(body, error.status, error.headers, "application/json")


OPERATIONS = [
    Operation(method=method, path="/hello/{name}", handler=hello, summary="Say hello.", tag="Hello", body={})
    for method in ("GET", "POST")
]


def make_app(texts: Mapping[str, str] | None = None, health: Callable[[], str | None] = lambda: None) -> App:
    return Service(WebSettings.parse({"allowed.hosts": "hello", **(texts or {})}), []).make_app(
        OPERATIONS, title="Hello", error_response=error_response, describe_error=lambda error: None, health=health
    )


def run(app: App, check: Callable[[httpx.AsyncClient], Any]) -> None:
    async def inner() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hello:1") as client:
            await check(client)

    asyncio.run(inner())


def test_operations_of_all_services_are_served_and_described() -> None:
    async def check(client: httpx.AsyncClient) -> None:
        document = (await client.get("/openapi.json")).json()
        check_document(document)
        assert sorted(document["paths"]) == ["/docs", "/health", "/hello/{name}", "/metrics", "/openapi.json"]
        assert (await client.get("/health")).json() == {"status": "ok"}

    run(make_app(), check)


def test_unhealthy_service_says_why() -> None:
    async def check(client: httpx.AsyncClient) -> None:
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()) == (503, {"status": "unhealthy", "reason": "no leader"})

    run(make_app(health=lambda: "no leader"), check)


def test_metrics_count_requests_by_operation_and_status() -> None:
    async def check(client: httpx.AsyncClient) -> None:
        for name in ("a", "b"):
            await client.get(f"/hello/{name}")
        await client.get("/nothing/here")
        await client.delete("/hello/a")
        answer = await client.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        counted = {
            (each.labels["operation"], each.labels["status"]): each.value
            for each in families["ottla_http_requests"].samples
        }
        assert counted == {("get_hello_by_name", "200"): 2, ("none", "404"): 1, ("none", "405"): 1}
        assert families["ottla_http_requests_in_flight"].samples[0].value == 1
        [count] = [each for each in families["ottla_http_request_seconds"].samples
                   if each.name.endswith("_count") and each.labels["operation"] == "get_hello_by_name"]  # fmt: skip
        assert count.value == 2

    run(make_app(), check)


def test_credentials_are_needed_except_for_public_operations(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(user_line("ann", hash_password(b"s3cret", bytes(16), ln=10, r=8, p=1)))
    users.chmod(0o600)

    async def check(client: httpx.AsyncClient) -> None:
        for path in ("/hello/a", "/metrics"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)
            assert answer.headers["www-authenticate"].startswith("Basic ")
            assert (await client.get(path, auth=("ann", "s3cret"))).status_code == 200
        for path in ("/health", "/docs", "/openapi.json"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/openapi.json")).json()["security"] == [{"basic": []}]

    run(make_app({"authentication.method": "BASIC", "authentication.users.file": str(users)}), check)


def test_rate_of_one_client_is_limited() -> None:
    async def check(client: httpx.AsyncClient) -> None:
        answers = [await client.get("/hello/a") for _ in range(12)]
        assert [each.status_code for each in answers[:6]] == [200] * 6
        refused = [each for each in answers if each.status_code == 429]
        assert refused
        assert (refused[0].json()["error_code"], refused[0].headers["retry-after"]) == (42901, "1")
        assert (await client.get("/health")).status_code == 200

    run(make_app({"rate.limit.requests.per.sec": "3"}), check)


PAGE = {"origin": "https://shop.example"}
PREFLIGHT = {**PAGE, "access-control-request-method": "POST"}


def test_page_whose_host_name_points_to_the_service_is_refused() -> None:
    """DNS rebinding: for the browser, page and service have the same origin."""

    async def check(client: httpx.AsyncClient) -> None:
        rebound = {"host": "evil.example:1", "origin": "http://evil.example:1"}
        for headers in (rebound, {"host": "evil.example"}):
            for method, path in (("GET", "/hello/a"), ("POST", "/hello/a"), ("GET", "/health"), ("GET", "/none")):
                answer = await client.request(method, path, headers=headers)
                assert (answer.status_code, answer.json()["error_code"]) == (403, 40302)
        refused = await client.options("/hello/a", headers={**PREFLIGHT, **rebound})
        assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (403, False)
        # The certificate of the service has not that name, so no browser sends this over https.
        assert (await client.get("https://evil.example/hello/a")).status_code == 200

    run(make_app(), check)
    run(make_app({"access.control.allow.origin": "*"}), check)


def test_pages_of_other_origins_change_nothing_by_default() -> None:
    async def check(client: httpx.AsyncClient) -> None:
        for origin in ("https://shop.example", "null", "http://hello:2", "http://[x", "http://hello.evil:1"):
            answer = await client.post("/hello/a", headers={"origin": origin})
            assert (answer.status_code, answer.json()["error_code"]) == (403, 40301), origin
        assert (await client.post("/hello/a", headers={"origin": "http://hello:1"})).status_code == 200
        answer = await client.get("/hello/a", headers=PAGE)
        assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (200, False)
        answer = await client.options("/hello/a", headers=PREFLIGHT)
        assert "access-control-allow-origin" not in answer.headers

    run(make_app(), check)


@pytest.mark.parametrize(
    ("allowed", "header"), [("*", "*"), ("https://a.example,https://shop.example", "https://shop.example")]
)
def test_pages_of_allowed_origins_can_use_the_service(allowed: str, header: str) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        answer = await client.options("/hello/a", headers=PREFLIGHT)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, header)
        assert answer.headers["access-control-allow-headers"] == "Accept, Authorization, Content-Type"
        answer = await client.post("/hello/a", headers=PAGE)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, header)
        assert "access-control-allow-credentials" not in answer.headers
        assert (await client.get("/none", headers=PAGE)).headers["access-control-allow-origin"] == header
        refused = await client.post("/hello/a", headers={"origin": "https://other.example"})
        assert refused.status_code == (200 if allowed == "*" else 403)

    run(make_app({"access.control.allow.origin": allowed}), check)


def test_pages_may_read_the_headers_that_are_exposed() -> None:
    async def check(client: httpx.AsyncClient) -> None:
        answer = await client.post("/hello/a", headers=PAGE)
        assert answer.headers["access-control-expose-headers"] == "Location, Retry-After"
        preflight = await client.options("/hello/a", headers=PREFLIGHT)
        assert "access-control-expose-headers" not in preflight.headers
        assert "access-control-expose-headers" not in (await client.get("/hello/a")).headers

    settings = {"access.control.allow.origin": "*", "access.control.expose.headers": "Location,Retry-After"}
    run(make_app(settings), check)


def test_bodies_of_all_requests_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "BUFFERED_BYTES_MAX", 1000)
    app = make_app()

    async def check(client: httpx.AsyncClient) -> None:
        held, release = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 800
            held.set()
            await release.wait()
            yield b"x"

        first = asyncio.create_task(client.post("/hello/a", content=slow()))
        await held.wait()
        while not app._buffered.total:
            await asyncio.sleep(0)
        answer = await client.post("/hello/a", content=b"y" * 300)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await client.post("/hello/a", content=b"y" * 100)).json() == {"bytes": 100}
        release.set()
        assert (await first).json() == {"bytes": 801}
        assert app._buffered.total == 0

    run(app, check)


def test_body_that_takes_too_long_in_total_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "BODY_S_MAX", 0.0)

    async def check(client: httpx.AsyncClient) -> None:
        async def slow() -> AsyncIterator[bytes]:
            yield b"x"
            await asyncio.sleep(3600)

        answer = await client.post("/hello/a", content=slow())
        assert (answer.status_code, answer.headers["connection"]) == (408, "close")

    run(make_app(), check)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/vnd.other.v2+json"}, 200),
        ({"content-type": "application/x-www-form-urlencoded"}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-encoding": "identity"}, 200),
        ({"content-encoding": "gzip"}, 415),
    ],
)
def test_body_of_another_media_type_and_compressed_body_are_refused(headers: dict[str, str], status: int) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        answer = await client.post("/hello/a", content=b"{}", headers=headers)
        assert answer.status_code == status

    run(make_app(), check)


def test_path_that_is_not_utf8_is_refused() -> None:
    async def check(client: httpx.AsyncClient) -> None:
        assert (await client.post("/hello/%ff")).json()["error_code"] == 400
        assert (await client.post("/hello/%c3%a9")).status_code == 200

    run(make_app(), check)


# requests that the server cancels, because the service stops


def run_cancelled(handler: Callable[[Request], Any]) -> list[dict[str, Any]]:
    """Return what is sent for a request that is cancelled when the handler waits."""

    async def inner() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        operation = Operation(method="GET", path="/long", handler=handler, summary="Wait.", tag="Hello")
        app = Service(WebSettings.parse({}), []).make_app(
            [operation], title="Long", error_response=error_response, describe_error=lambda error: None
        )
        scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "path": "/long", "raw_path": b"/long",
            "headers": [], "query_string": b"", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
            "scheme": "http", "root_path": "", "state": {"waits": asyncio.Event()},
        }  # fmt: skip

        received = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> dict[str, Any]:
            for message in received:
                return message
            await asyncio.Event().wait()
            raise AssertionError("the client does not disconnect")

        async def send(message: Any) -> None:
            sent.append(message)

        task = asyncio.create_task(app(scope, receive, send))
        await asyncio.wait_for(scope["state"]["waits"].wait(), 60)  # type: ignore[index]
        task.cancel("timeout graceful shutdown exceeded")
        await task
        return sent

    return asyncio.run(inner())


def test_request_that_is_cancelled_at_the_stop_is_answered() -> None:
    async def wait(request: Request) -> Response:
        request.state.waits.set()
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    begin, body = run_cancelled(wait)
    assert begin["status"] == 503 and b"the service stops" in body["body"]


def test_long_answer_that_is_cancelled_at_the_stop_ends_without_an_exception() -> None:
    async def answer(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            request.state.waits.set()
            await asyncio.Event().wait()

        return StreamingResponse(pieces())

    begin, *bodies = run_cancelled(answer)
    assert begin["status"] == 200 and [body["body"] for body in bodies] == [b"first"]
