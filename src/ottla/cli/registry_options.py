"""The options by which a command finds its schema registry."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ottla.cli.connection import parse_pairs
from ottla.cli.failure import Failure, NotFound, NotHealthy

_Function = TypeVar("_Function", bound=Callable[..., Any])

REGISTRY_DEFAULT = "http://127.0.0.1:8081"
REGISTRY_ENVIRONMENT = "OTTLA_REGISTRY"


def registry_options(function: _Function) -> _Function:
    """Add --registry and -R; the function gets `registry`."""

    @click.option(
        "-r",
        "--registry",
        "url",
        metavar="URL,...",
        help=f"Schema registry.  [env: {REGISTRY_ENVIRONMENT}; default: {REGISTRY_DEFAULT}]",
    )
    @click.option(
        "-R",
        "properties",
        metavar="KEY=VALUE",
        multiple=True,
        callback=parse_pairs,
        help="Set a property of the registry's client, such as basic.auth.user.info. Repeatable.",
    )
    @functools.wraps(function)
    def with_registry(*args: Any, url: str | None, properties: dict[str, str], **kwargs: Any) -> Any:
        from ottla.client.errors import PropertyRefused
        from ottla.client.registry import RegistryError, RegistryUnreachable, SchemaRegistry

        try:
            registry = SchemaRegistry(url or os.environ.get(REGISTRY_ENVIRONMENT, REGISTRY_DEFAULT), properties)
            try:
                return function(*args, registry=registry, **kwargs)
            finally:
                registry.close()
        except PropertyRefused as error:
            raise click.UsageError(str(error)) from None
        except RegistryUnreachable as error:
            raise NotHealthy(f"{error}. Start one with 'ottla registry', or name another with --registry") from None
        except RegistryError as error:
            raise (NotFound if error.status == 404 else Failure)(str(error)) from None

    return with_registry  # type: ignore[return-value]
