"""systemd hears when a broker is ready and when it stops."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ottla.env.process import notify_service_manager


def test_state_goes_to_the_notify_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify_service_manager("READY=1")
        assert manager.recv(100) == b"READY=1"


def test_state_goes_to_an_abstract_notify_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{tmp_path}")
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{tmp_path}")
        notify_service_manager("STOPPING=1")
        assert manager.recv(100) == b"STOPPING=1"


def test_a_service_manager_that_does_not_answer_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "missing"))
    notify_service_manager("READY=1")
    assert "service manager was not notified" in caplog.text
