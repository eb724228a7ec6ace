"""Starts `ottla rest` as a process, and sends requests to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import jsonschema
from edge_broker import IS_KAFKA

#: lines of a stream that are checked
_LINES_CHECKED = 20
_CONFIG_S = 1.0


class RestClient:
    """Requests to one proxy. Paths that do not start with a slash are below the cluster."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self.http = httpx.Client(base_url=url, timeout=60)
        self.cluster_id = ""
        #: pattern, number of variable segments and operations of each path in the OpenAPI document
        self._paths: list[tuple[re.Pattern[str], int, dict[str, Any]]] = []
        self._error: dict[str, Any] = {}
        self._validators: dict[int, jsonschema.Draft202012Validator] = {}

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def find_cluster(self) -> None:
        self.cluster_id = self.get("/v3/clusters").json()["data"][0]["cluster_id"]

    @property
    def cluster(self) -> str:
        """The URL of the cluster, with which the links of its resources begin."""
        return f"{self.url}/v3/clusters/{self.cluster_id}"

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        if not path.startswith("/"):
            path = f"/v3/clusters/{self.cluster_id}/{path}"
        found = self.http.request(method, path, **more)
        if IS_KAFKA and method != "GET" and "config" in path:
            # A broker of KRaft applies a changed config after the controller has answered, and nothing tells when.
            time.sleep(_CONFIG_S)
        self._check(method, path.partition("?")[0], found)
        return found

    def _check(self, method: str, path: str, found: httpx.Response) -> None:
        """Check that the OpenAPI document describes this answer."""
        if not self._paths:
            document = self.http.get("/openapi.json").json()
            self._error = document["components"]["schemas"]["Error"]
            self._paths = [
                (re.compile(re.sub(r"\{\w+\}", "[^/]+", template) + "/?"), template.count("{"), rows)
                for template, rows in document["paths"].items()
            ]
        # A fixed segment is preferred to a variable one.
        matches = sorted((count, n) for n, (pattern, count, rows) in enumerate(self._paths)
                         if pattern.fullmatch(path) and method.lower() in rows)  # fmt: skip
        if not matches:
            assert found.status_code in (404, 405), path
            return
        described = self._paths[matches[0][1]][2][method.lower()]["responses"]
        row = described[str(found.status_code)]
        media_type = found.headers.get("content-type", "").partition(";")[0]
        if "content" not in row:
            assert found.content == b""
        elif found.status_code >= 400 and "offsets" not in found.json():
            assert set(found.json()) == set(self._error["required"])
        else:
            schema = row["content"][media_type]["schema"]
            lines = found.text.splitlines() if path.endswith("/records") else [found.text]
            validator = self._validators.setdefault(id(schema), jsonschema.Draft202012Validator(schema))
            for line in lines[:_LINES_CHECKED]:
                validator.validate(json.loads(line))

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **more)

    def put(self, path: str, body: Any = None) -> httpx.Response:
        return self.request("PUT", path, json=body)

    def patch(self, path: str, body: Any = None) -> httpx.Response:
        return self.request("PATCH", path, json=body)

    def delete(self, path: str, **more: Any) -> httpx.Response:
        return self.request("DELETE", path, **more)

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        rows = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        made = self.post("topics", {"topic_name": name, "partitions_count": partitions, "configs": rows})
        assert made.status_code == 201, made.text
        return name


@contextmanager
def rest_process(bootstrap: str, *options: str) -> Iterator[RestClient]:
    """Return a client of a proxy that accepts requests."""
    command = [
        sys.executable, "-m", "ottla", "rest", "--bootstrap", bootstrap, "--listen", "http://127.0.0.1:0", *options,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OTTLA_END_WITH_STDIN": "1"},
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready http://127.0.0.1:"), line
            client = RestClient(line.split()[1], process.pid)
            with client.http:
                yield client
        finally:
            process.kill()


def error_of(response: httpx.Response) -> tuple[int, int]:
    """Return the status and the error code of an error."""
    found = response.json()
    assert set(found) == {"error_code", "message"}
    assert found["message"]
    return response.status_code, found["error_code"]
