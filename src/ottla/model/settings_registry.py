"""The broker's settings of the schema registry, which it asks for topics with `schema.validation`."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from ottla.model.registry_secrets import SECRETS, URL, secrets_to_repeat
from ottla.model.setting_types import ANY, PASSWORD, STRING, Check, Setting, SettingsSnapshot, one_of

#: values of schema.validation
NO_VALIDATION, REJECT, DEAD_LETTER, WARN = "none", "reject", "dlq", "warn"
VALIDATIONS = one_of(NO_VALIDATION, REJECT, DEAD_LETTER, WARN)
#: values of schema.validation.subject
ANY_SUBJECT, TOPIC_SUBJECT = "any", "topic"
VALIDATION_SUBJECTS = one_of(ANY_SUBJECT, TOPIC_SUBJECT)
_PREFIX = "schema.registry."


def _is_registry_url(text: str) -> bool:
    try:
        url = urlsplit(text.strip())
        _ = url.port
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname) and url.username is None and not url.query


REGISTRY_URLS = Check(
    "http://HOST:PORT or https://HOST:PORT, several joined by commas, without a user name",
    lambda value: not value or all(map(_is_registry_url, value.split(","))),
)


class RegistrySettings(SettingsSnapshot):
    """The schema registry's part of the broker's table."""

    schema_registry_url = Setting(
        "schema.registry.url",
        STRING,
        "",
        REGISTRY_URLS,
        "Ottla only. Addresses of the schema registry that this broker asks for topics with `schema.validation`. A "
        "password or token in the properties file is only sent to addresses in that file: with one of them, another "
        "address cannot be set while the broker runs.",
        dynamic=True,
    )
    schema_registry_basic_auth_user_info = Setting(
        "schema.registry.basic.auth.user.info", PASSWORD, "", ANY, "Ottla only. USER:PASSWORD for the schema registry."
    )
    schema_registry_bearer_auth_token = Setting(
        "schema.registry.bearer.auth.token", PASSWORD, "", ANY, "Ottla only. Token for the schema registry."
    )
    schema_registry_ssl_ca_location = Setting(
        "schema.registry.ssl.ca.location", STRING, "", ANY,
        "Ottla only. PEM file of the authorities that the certificate of the schema registry is checked with. Empty: "
        "those of the system.",
    )  # fmt: skip
    schema_registry_ssl_certificate_location = Setting(
        "schema.registry.ssl.certificate.location", STRING, "", ANY,
        "Ottla only. PEM file of the certificate that this broker shows to the schema registry.",
    )  # fmt: skip
    schema_registry_ssl_key_location = Setting(
        "schema.registry.ssl.key.location", STRING, "", ANY, "Ottla only. PEM file of the key of that certificate."
    )
    schema_registry_ssl_key_password = Setting(
        "schema.registry.ssl.key.password", PASSWORD, "", ANY, "Ottla only. Password of that key."
    )

    def registry_properties(self) -> dict[str, str]:
        """Return the properties for a client of the registry, by the names of Confluent's clients."""
        names = (name for name in RegistrySettings.rows() if name != URL)
        return {name.removeprefix(_PREFIX): text for name in names if (text := self.value_of(name))}

    def misdirected_secrets(self, explicit: Mapping[str, str]) -> str | None:
        """Return why a registry at a dynamic address cannot be used with the secrets of the file; None if it can.

        Dynamic settings hold no secrets, so a user who may change them cannot give the secret again.
        """
        stored = self.registry_properties()
        file = {**stored, URL: explicit.get(URL, "")}
        names = secrets_to_repeat(file, {**stored, URL: self.schema_registry_url}, SECRETS & stored.keys())
        if not names:
            return None
        return (
            f"{URL} has an address that is not in the properties file of the broker, and {_PREFIX}{names[0]} of that "
            f"file is not sent to another server: set both in the file and restart"
        )
