"""The options of the commands that run an HTTP service (`ottla registry`, `ottla rest`)."""

from __future__ import annotations

import importlib.util
import os

import click

from ottla.admin.failure import Failure
from ottla.cli.connection import BOOTSTRAP_DEFAULT, BOOTSTRAP_ENVIRONMENT, choice_properties, parse_pairs
from ottla.cli.options import Decorator, gathered_options, log_format_option
from ottla.cli.profiles import chosen, profile_option
from ottla.env.process import read_settings_file
from ottla.model import extras
from ottla.model.settings import parse_properties

#: packages of the extra `edge` that the services import; google is the package of protobuf
PACKAGES = ("starlette", "uvicorn", "httptools", "httpx", "google.protobuf", "jinja2")


def service_options(listen_default: str) -> Decorator:
    """Add the options of all services; the command gets the settings, `texts`, instead of them.

    -X takes precedence over the other options, and these over the file.
    """

    def gather(
        addresses: tuple[str, ...],
        bootstrap: str | None,
        config_file: str | None,
        insecure: bool,
        *,
        log_format: str | None,
        properties: dict[str, str],
    ) -> dict[str, str]:
        missing = missing_package()
        if missing is not None:
            raise Failure(missing_message(missing))
        texts = _read_file(config_file)
        if addresses:
            texts["listeners"] = ",".join(addresses)
        if bootstrap is not None:
            texts["bootstrap.servers"] = bootstrap
        if insecure:
            texts["allow.insecure.listeners"] = "true"
        if log_format is not None:
            texts["log.format"] = log_format
        texts |= properties
        texts.setdefault("listeners", listen_default)
        _name_cluster(texts)
        return texts

    return gathered_options(
        "texts",
        gather,
        click.option(
            "--listen",
            "addresses",
            metavar="URL",
            multiple=True,
            help=f"Address to listen on; port 0 chooses a free port. Repeatable.  [default: {listen_default}]",
        ),
        click.option(
            "-b",
            "--bootstrap",
            "--bootstrap-server",
            "bootstrap",
            metavar="HOST:PORT,...",
            help=f"Bootstrap servers.  [env: {BOOTSTRAP_ENVIRONMENT}; default: {BOOTSTRAP_DEFAULT}]",
        ),
        click.option(
            "--config", "config_file", metavar="FILE", type=click.Path(), help="Read settings from a properties file."
        ),
        click.option(
            "--insecure",
            is_flag=True,
            help="Let listeners on other addresses than loopback accept clients without TLS and authentication.",
        ),
        log_format_option,
        click.option(
            "-X",
            "properties",
            metavar="KEY=VALUE",
            multiple=True,
            callback=parse_pairs,
            help="Set a setting, such as listeners. Those of the service's Kafka client begin with client. Repeatable.",
        ),
        profile_option,
    )


def _name_cluster(texts: dict[str, str]) -> None:
    """Add the address of the cluster if it is missing, and the properties of the profile that are for this address."""
    from ottla.admin.client import is_client_property

    given = next((text for name, text in texts.items() if name.endswith("bootstrap.servers")), None)
    choice = chosen()
    properties: dict[str, str] = {}
    if choice is None:
        found = given or os.environ.get(BOOTSTRAP_ENVIRONMENT)
    else:
        own, address = choice_properties(choice)
        found, is_used = choice.address(given, address, BOOTSTRAP_ENVIRONMENT)
        properties = own if is_used else {}
    if given is None:
        texts["bootstrap.servers"] = found or BOOTSTRAP_DEFAULT
    for name, text in properties.items():
        if is_client_property(name):
            texts.setdefault(f"client.{name}", text)


def missing_package() -> str | None:
    """Return the first package that the services need and that is not installed; None if all are."""
    return next((name for name in PACKAGES if not _is_installed(name)), None)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def missing_message(package: str) -> str:
    return extras.missing(package, extras.EDGE)


def _read_file(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return parse_properties(read_settings_file(path))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
