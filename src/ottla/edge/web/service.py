"""Runs an HTTP service: settings, log, signals, sockets, the `ready` line, an orderly stop, the exit code.

    def run(texts):                                        # called by `ottla NAME`; see cli/service_options.py
        return run_service("NAME", NameSettings.parse, texts, start)

    @asynccontextmanager
    async def start(service: Service[NameSettings]) -> AsyncIterator[ASGIApp]:
        state = await load(service.settings)               # before the sockets accept
        yield service.make_app(operations(state), title="...", error_response=..., describe_error=...)
        await state.close()                                # after the last answer

The order of a stop: the functions given to `before_stop`, then no new connections, then the requests in progress for up
to five seconds, then the rest of `start`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from starlette.types import ASGIApp

import ottla
from ottla.edge.web.app import App, Authenticate, DescribeError, ErrorResponse, Operation, Parameter, Router
from ottla.edge.web.authentication import Authenticator, CheckLogin
from ottla.edge.web.connections import ConnectionLimits, ConnectionTable
from ottla.edge.web.guard import ServiceGuard, state_operations
from ottla.edge.web.metrics import HttpMetrics
from ottla.edge.web.openapi import Api, document_operations
from ottla.edge.web.server import BoundSocket, Listener, bind, serve
from ottla.edge.web.settings import WebSettings
from ottla.env.collector import collect_less_often
from ottla.env.process import (
    END_WITH_STDIN,
    log_to_stderr,
    notify_service_manager,
    open_files_limit,
    raise_open_files_limit,
)
from ottla.env.tasks import Tasks
from ottla.model.errors import StartError
from ottla.model.types import is_loopback
from ottla.security.errors import SecurityConfigError

if TYPE_CHECKING:
    from ottla.security.certificates import Certificates

log = logging.getLogger(__name__)

OK, FAILED, USAGE = 0, 1, 2
#: how often the files of certificates are checked, as in the broker
_RELOAD_S: Final = 1.0

Settings = TypeVar("Settings", bound=WebSettings)


class StoppedAtStart(Exception):
    """The service has to stop and is not ready yet. `start` may raise it; the exit code is 0."""


class Service(Generic[Settings]):
    """What a service gets when it starts."""

    def __init__(
        self, settings: Settings, listeners: Sequence[Listener], check_login: CheckLogin | None = None
    ) -> None:
        """Raise StartError if the settings of authentication do not fit together."""
        self.settings = settings
        self.authenticator = Authenticator(settings, check_login)
        self.connections = ConnectionTable(
            ConnectionLimits(
                connections_max=settings.max_connections,
                head_bytes_max=settings.max_header_bytes,
                setup_s=settings.connection_setup_timeout_ms / 1000,
            ).within(open_files_limit())
        )
        self.guard = ServiceGuard(settings, HttpMetrics(self.connections))
        #: with the ports that were chosen for port 0
        self.listeners = tuple(listeners)
        #: is set when the service has to stop
        self.stop = asyncio.Event()
        self._failure: str | None = None
        self._before_stop: list[Callable[[], Awaitable[None]]] = []

    @property
    def failure(self) -> str | None:
        """Return why the service ends by itself; None if it does not."""
        return self._failure

    def fail(self, reason: str) -> None:
        """Stop the service with exit code 1. The reason is printed."""
        self._failure = self._failure or reason
        self.stop.set()

    def before_stop(self, function: Callable[[], Awaitable[None]]) -> None:
        """Call this when the service stops, while it still answers requests: to resign, or to end long answers."""
        self._before_stop.append(function)

    async def prepare_stop(self) -> None:
        for function in self._before_stop:
            await function()

    def make_app(
        self,
        operations: Sequence[Operation],
        *,
        title: str,
        error_response: ErrorResponse,
        describe_error: DescribeError,
        parameters: Sequence[Parameter] = (),
        error_media_types: Sequence[str] = ("application/json",),
        path_bytes_max: int | None = None,
        health: Callable[[], str | None] = lambda: None,
        authenticate: Authenticate | None = None,
    ) -> App:
        """Return the app with the operations of the service and those that all services have.

        ``parameters`` describe the variable segments of paths. ``health`` returns why the service cannot do its work,
        None if it can. ``authenticate`` takes the place of the authentication by the settings.
        """
        api = Api(
            title=title, version=ottla.__version__, parameters=parameters, error_media_types=error_media_types,
            authentication=self.settings.authentication_methods,
        )  # fmt: skip
        taken = {(each.method, each.path) for each in operations}
        own = [each for each in state_operations(self.guard.metrics, health) if (each.method, each.path) not in taken]
        every = [*operations, *own]
        return App(
            Router([*every, *document_operations(every, api)]),
            guard=self.guard,
            error_response=error_response,
            describe_error=describe_error,
            authenticate=authenticate or self.authenticator,
            path_bytes_max=path_bytes_max,
        )


Start = Callable[[Service[Settings]], AbstractAsyncContextManager[ASGIApp]]


def run_service(
    name: str,
    parse: Callable[[Mapping[str, str]], Settings],
    texts: Mapping[str, str],
    start: Start[Settings],
    check_login: CheckLogin | None = None,
) -> int:
    """Run a service until SIGTERM or SIGINT. Return the exit code of the process.

    ``check_login`` returns whether the cluster accepts the credentials of a user (`edge/web/authentication.py`).
    """
    try:
        settings = parse(texts)
    except ValueError as error:
        return _complain(name, str(error), USAGE)
    log_to_stderr(settings.log_level, settings.log_format)
    for ignored in settings.ignored:
        log.warning("setting has no effect here name=%s", ignored)
    raise_open_files_limit()
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(name, settings, start, check_login))


async def _run(name: str, settings: Settings, start: Start[Settings], check_login: CheckLogin | None) -> int:
    bound: list[tuple[Listener, socket.socket]] = []
    try:
        wanted = [Listener.parse(text) for text in settings.listeners]
        for listener in insecure_listeners(settings, wanted):
            log.warning("listener has no TLS or no authentication listener=%s", listener)
        certificates = _certificates(settings, wanted)
        bound += [bind(listener) for listener in wanted]
        service = Service(settings, [listener for listener, _ in bound], check_login)
    except StartError as error:
        for _, each in bound:
            each.close()
        return _complain(name, str(error), FAILED)
    _stop_on_signals(service.stop)
    tls = None if certificates is None else reloading_context(certificates)
    sockets = [BoundSocket(each, tls if listener.scheme == "https" else None) for listener, each in bound]
    tasks = Tasks()
    if certificates is not None:
        tasks.keep(partial(_reload, certificates), "reload certificates")

    def tell_ready() -> None:
        sys.stdout.write(f"ready {','.join(map(str, service.listeners))}\n")
        sys.stdout.flush()
        notify_service_manager("READY=1")

    try:
        async with start(service) as app:
            collect_less_often()
            await serve(
                app, sockets, service.stop, started=tell_ready, before_stop=service.prepare_stop,
                connections=service.connections,
            )  # fmt: skip
            notify_service_manager("STOPPING=1")
    except StartError as error:
        return _complain(name, str(error), FAILED)
    except StoppedAtStart:
        return OK
    finally:
        await tasks.stop()
        await service.authenticator.close()
        for _, each in bound:
            each.close()
    return OK if service.failure is None else _complain(name, service.failure, FAILED)


def _certificates(settings: WebSettings, listeners: Sequence[Listener]) -> Certificates | None:
    """Return the certificates of the https listeners; None if there is no such listener. Raise StartError."""
    if not any(listener.scheme == "https" for listener in listeners):
        return None
    # Loads a library of 10 MB, which services without https do not need.
    from ottla.security.certificates import Certificates

    try:
        return Certificates(settings.tls())
    except SecurityConfigError as error:
        raise StartError(f"https listeners: {error}") from None


def reloading_context(certificates: Certificates) -> ssl.SSLContext:
    """Return a context whose connections use the certificates of the time when they are opened.

    The event loop keeps the context that it gets. OpenSSL calls this function at the begin of each handshake, also for
    clients that send no server name.
    """

    def use_current(tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        tls.context = certificates.context

    context = certificates.context
    context.sni_callback = use_current
    return context


async def _reload(certificates: Certificates) -> None:
    while True:
        await asyncio.sleep(_RELOAD_S)
        certificates.reload("https")


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if os.environ.get(END_WITH_STDIN):
        loop.add_reader(sys.stdin.fileno(), stop.set)


def insecure_listeners(settings: WebSettings, listeners: Sequence[Listener]) -> list[Listener]:
    """Return the listeners that are open to other machines without TLS or authentication.

    Raise StartError if there is one and the operator does not allow it, or if there is no listener.
    """
    if not listeners:
        raise StartError("there is no listener; set listeners, or an address with --listen")
    found = []
    for listener in listeners:
        is_https = listener.scheme == "https"
        if is_loopback(listener.host) or (is_https and settings.authenticates_clients):
            continue
        if settings.allow_insecure_listeners:
            found.append(listener)
            continue
        way = "" if is_https else "use https with certificates of ottla security init, and "
        raise StartError(
            f"listener {listener} lets every machine of the network read and write all data; listen on 127.0.0.1, or "
            f"{way}set authentication.method, or allow it with --insecure (allow.insecure.listeners=true)"
        )
    return found


def _complain(name: str, text: str, code: int) -> int:
    sys.stderr.write(f"ottla {name}: {text}\n")
    return code
