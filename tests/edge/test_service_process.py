"""A service as a process: the `ready` line, signals, exit codes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import httpx
import pytest
from hello_service import start
from service_process import command, hello_service

from ottla.edge.web.service import run_service
from ottla.edge.web.settings import WebSettings


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_service_in_order(number: signal.Signals) -> None:
    with hello_service() as (process, url):
        assert httpx.get(f"{url}/hello/you").json() == {"hello": "you", "bytes": 0}
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "before stop\nclosed\n", "")


def test_service_ends_with_the_process_that_started_it() -> None:
    with hello_service() as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_silent_connections_do_not_use_up_the_open_files() -> None:
    limited = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
    with hello_service(wrapper=limited) as (process, url), ExitStack() as stack:
        address = httpx.URL(url)
        for _ in range(300):
            stack.enter_context(socket.create_connection((address.host, address.port or 0)))
        for _ in range(3):
            assert httpx.get(f"{url}/hello/you").status_code == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert err == "", "no connection was left waiting for a descriptor"


def test_wrong_settings_end_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_service("hello", WebSettings.parse, {"listenerz": "x"}, start) == 2
    assert capsys.readouterr().err == "ottla hello: unknown setting 'listenerz'; did you mean 'listeners'?\n"


def test_insecure_listener_ends_with_one_line() -> None:
    done = subprocess.run(command("listeners=http://0.0.0.0:0"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("ottla hello: listener http://0.0.0.0:0 lets every machine")
    assert done.stderr.count("\n") == 1


def test_address_that_is_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(command(f"listeners={url}"), capture_output=True, text=True, timeout=60)
    assert (done.returncode, "cannot listen on" in done.stderr) == (1, True)


def test_proxy_whose_cluster_does_not_answer_says_so_and_stops_without_a_traceback() -> None:
    # No program listens on port 1.
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "rest", "--listen", "http://127.0.0.1:0", "--bootstrap", "127.0.0.1:1"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            health = httpx.get(f"{ready.split()[1]}/health", timeout=60)
            process.terminate()
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
    [line] = err.splitlines()
    assert "WARNING" in line and "the cluster at 127.0.0.1:1 cannot be reached (connection refused)" in line
    assert process.returncode == 0
