"""The options by which a command finds its schema registry, and its errors as exit codes."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure, NotFound, NotHealthy
from ottla.cli.connection import parse_pairs
from ottla.cli.options import Function, gathered_options
from ottla.cli.profiles import chosen, profile_option
from ottla.cli.watch import kept_client

if TYPE_CHECKING:
    from ottla.client.registry import SchemaRegistry

REGISTRY_DEFAULT = "http://127.0.0.1:8081"
REGISTRY_ENVIRONMENT = "OTTLA_REGISTRY"


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """Where the registry is and how to log in."""

    urls: str
    properties: Mapping[str, str]

    @contextmanager
    def open(self) -> Iterator[SchemaRegistry]:
        """Return a client. Its errors end the command: 2 bad property, 3 not found, 4 no answer, 1 any other."""
        from ottla.client.errors import PropertyRefused
        from ottla.client.registry import RegistryError, RegistryUnreachable, SchemaRegistry

        try:
            kept = kept_client(self, lambda: SchemaRegistry(self.urls, self.properties))
            if kept is not None:
                yield kept
                return
            registry = SchemaRegistry(self.urls, self.properties)
            try:
                yield registry
            finally:
                registry.close()
        except PropertyRefused as error:
            raise click.UsageError(str(error)) from None
        except RegistryUnreachable as error:
            raise NotHealthy(f"{error}. Start one with 'ottla registry', or name another with --registry") from None
        except RegistryError as error:
            raise (NotFound if error.status == 404 else Failure)(str(error)) from None


def make_address(url: str | None, registry_properties: dict[str, str]) -> RegistryAddress:
    """Return the registry of the options, the environment, the profile or the default, see `connection`."""
    choice = chosen()
    if choice is None:
        return RegistryAddress(url or os.environ.get(REGISTRY_ENVIRONMENT) or REGISTRY_DEFAULT, registry_properties)
    found, is_used = choice.address(url, choice.profile.registry, REGISTRY_ENVIRONMENT)
    own = choice.profile.registry_properties if is_used else {}
    return RegistryAddress(found or REGISTRY_DEFAULT, {**own, **registry_properties})


#: --registry, -R and --profile; the command gets a `registry_address`
registry_address_options = gathered_options(
    "registry_address",
    make_address,
    click.option(
        "-r",
        "--registry",
        "url",
        metavar="URL,...",
        help=f"Schema registry.  [env: {REGISTRY_ENVIRONMENT}; default: {REGISTRY_DEFAULT}]",
    ),
    click.option(
        "-R",
        "registry_properties",
        metavar="KEY=VALUE",
        multiple=True,
        callback=parse_pairs,
        help="Set a property of the registry's client, such as basic.auth.user.info. Repeatable.",
    ),
    profile_option,
)


def registry_options(function: Function) -> Function:
    """Add --registry and -R; the function gets a client, `registry`."""

    @registry_address_options
    @functools.wraps(function)
    def with_registry(*args: Any, registry_address: RegistryAddress, **kwargs: Any) -> Any:
        with registry_address.open() as registry:
            return function(*args, registry=registry, **kwargs)

    return with_registry
