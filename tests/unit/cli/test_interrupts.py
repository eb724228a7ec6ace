"""Ctrl-C: when KeyboardInterrupt is raised, and what a command's exit code is then."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import click
import pytest

from ottla.admin.failure import INTERRUPTED
from ottla.cli import interrupts
from ottla.cli.main import CommandLine


@pytest.fixture(autouse=True)
def _pythons_own_handler() -> Iterator[None]:
    """A Spark session in the same process has replaced Python's handler of SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_sigint_raises_at_once_outside_deferred_blocks() -> None:
    with interrupts.handled(), pytest.raises(KeyboardInterrupt):
        interrupt()


def test_sigint_in_a_deferred_block_raises_when_the_outermost_block_ends() -> None:
    steps = []

    def run() -> None:
        with interrupts.deferred():
            with interrupts.deferred():
                interrupt()
                steps.append("inner")
            steps.append("outer")
        steps.append("after")

    with interrupts.handled(), pytest.raises(KeyboardInterrupt):
        run()
    assert steps == ["inner", "outer"]


def test_a_deferred_interrupt_is_raised_once() -> None:
    with interrupts.handled():
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            interrupt()
        with interrupts.deferred():
            pass


def test_an_interruptible_call_returns_and_raises_what_the_function_does() -> None:
    def fail() -> None:
        raise LookupError("no")

    assert interrupts.run_interruptibly(lambda: 7) == 7
    with pytest.raises(LookupError, match="no"):
        interrupts.run_interruptibly(fail)


def test_sigint_ends_the_wait_for_a_call_that_never_returns() -> None:
    never = threading.Event()

    def block() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        never.wait()

    with pytest.raises(KeyboardInterrupt), interrupts.handled():
        interrupts.run_interruptibly(block)
    never.set()


@pytest.mark.parametrize("wrapper", [RuntimeError, OSError, SystemError])
def test_an_exception_that_follows_ctrl_c_is_exit_code_130_without_a_traceback(wrapper: type[Exception]) -> None:
    @click.group(cls=CommandLine)
    def root() -> None: ...

    @root.command("wait")
    def wait() -> None:
        try:
            interrupt()
        except KeyboardInterrupt:
            # Libraries do this: the interrupt leaves them as an error of their own.
            raise wrapper("connection lost") from None

    with pytest.raises(SystemExit) as exit_:
        root.main(["wait"])
    assert exit_.value.code == INTERRUPTED


def test_an_exception_without_ctrl_c_keeps_its_traceback() -> None:
    @click.group(cls=CommandLine)
    def root() -> None: ...

    @root.command("fail")
    def fail() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        root.main(["fail"])


def test_a_process_started_with_sigint_ignored_keeps_ignoring_it() -> None:
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from ottla.cli import interrupts\n"
        "with interrupts.handled(): signal.raise_signal(signal.SIGINT)\n"
        "print('went on')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "went on\n", done.stderr
