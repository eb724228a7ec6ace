"""Each error of the operating system gets the remedy that fits it."""

from __future__ import annotations

import errno
import os

import pytest

from ottla.env.advice import directory_advice, listen_advice


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EADDRINUSE, "stop the process that uses the port"),
        (errno.EADDRNOTAVAIL, "this machine has no address 192.0.2.1"),
        (errno.EACCES, "choose a higher port"),
        (errno.EAFNOSUPPORT, "choose another address"),
    ],
)
def test_advice_for_an_address_that_cannot_be_bound(code: int, remedy: str) -> None:
    text = listen_advice(OSError(code, os.strerror(code)), host="192.0.2.1", port=9092, option="--listener")
    assert text.startswith(os.strerror(code)) and remedy in text and text.endswith("with --listener")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOTDIR, "a file is in the place of the directory"),
        (errno.EEXIST, "a file is in the place of the directory"),
        (errno.EACCES, "right to read and write"),
        (errno.EROFS, "writable file system"),
        (errno.ENOSPC, "make room"),
        (errno.EIO, "check its disk"),
    ],
)
def test_advice_for_a_data_directory_that_cannot_be_used(code: int, remedy: str) -> None:
    text = directory_advice(OSError(code, os.strerror(code)), option="--data")
    assert remedy in text and text.endswith("with --data")
