"""A service for tests: `python hello_service.py KEY=VALUE...` runs it with these settings."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ottla.edge.web.app import HttpError, Operation
from ottla.edge.web.service import Service, run_service
from ottla.edge.web.settings import WebSettings


async def hello(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({"hello": request.path_params["name"], "bytes": len(body)})


def error_response(error: HttpError) -> Response:
    body = json.dumps({"error_code": error.error_code, "message": error.message})
    return Response(body, error.status, error.headers, "application/json")


OPERATIONS = [
    Operation(method="GET", path="/hello/{name}", handler=hello, summary="Say hello.", tag="Hello"),
    Operation(method="POST", path="/hello/{name}", handler=hello, summary="Say hello.", tag="Hello", body={}),
]


@asynccontextmanager
async def start(service: Service[WebSettings]) -> AsyncIterator[object]:
    async def announce() -> None:
        sys.stdout.write("before stop\n")

    service.before_stop(announce)
    yield service.make_app(OPERATIONS, title="Hello", error_response=error_response, describe_error=lambda error: None)
    sys.stdout.write("closed\n")


if __name__ == "__main__":
    pairs = (text.partition("=") for text in sys.argv[1:])
    sys.exit(run_service("hello", WebSettings.parse, {key: value for key, _, value in pairs}, start))
