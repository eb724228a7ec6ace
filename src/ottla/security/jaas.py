"""Reads Kafka's ``sasl.jaas.config``: a login module with its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="..." user_alice="...";

One statement ends with ``;``. Values are in double or single quotes, or bare words. In quotes a backslash keeps the
next character.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.security.errors import SecurityConfigError

_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s=;"']+)|(=)|(;))""", re.DOTALL)
_CLASS: Final = re.compile(r"[a-z]\w*(\.\w+)+", re.ASCII)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TEXT_MAX: Final = 1 << 20

#: the login modules of Kafka and the mechanisms that they are for
LOGIN_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": ("OAUTHBEARER",),
    "com.sun.security.auth.module.Krb5LoginModule": ("GSSAPI",),
}


class Login(NamedTuple):
    """A login module with its options. Only its class is shown, because options have passwords."""

    module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Login({self.module})"

    @property
    def users(self) -> dict[str, str]:
        """Return the passwords of the options ``user_NAME`` by user name."""
        return {name.removeprefix("user_"): value for name, value in self.options.items() if name.startswith("user_")}


def parse_jaas(setting: str, text: str) -> Login:
    """Return the login module in the value of a setting. Raise SecurityConfigError, which never shows the value."""
    if len(text) > _TEXT_MAX:
        raise SecurityConfigError(f"{setting} is longer than {_TEXT_MAX} characters")
    words = list(_words(setting, text))
    if words[-1:] != [(";", False)] or (";", False) in words[:-1]:
        raise SecurityConfigError(f"{setting} must be one login module that ends with a semicolon")
    if len(words) < 3 or words[0][1] or words[1][0].lower() not in _FLAGS:
        raise SecurityConfigError(
            f"{setting} must begin with the class of a login module and one of {', '.join(_FLAGS)}"
        )
    module, rest = words[0][0], words[2:-1]
    if module not in LOGIN_MODULES:
        # A word that is not the name of a class may be a password in the wrong place.
        shown = f" {module}" if _CLASS.fullmatch(module) else ""
        known = ", ".join(LOGIN_MODULES)
        raise SecurityConfigError(f"{setting} names a login module{shown} that is not one of {known}")
    options: dict[str, str] = {}
    for start in range(0, len(rest), 3):
        option = rest[start : start + 3]
        if len(option) < 3 or option[0][1] or option[1] != ("=", False):
            raise SecurityConfigError(f'{setting}: write each option as name="value", option {start // 3 + 1} is not')
        if option[0][0] in options:
            raise SecurityConfigError(f"{setting} has an option twice, option {start // 3 + 1} is the second")
        options[option[0][0]] = option[2][0]
    return Login(module, options)


def _words(setting: str, text: str) -> list[tuple[str, bool]]:
    """Return the words of the text, each with whether it was in quotes."""
    words, position = [], 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise SecurityConfigError(f"{setting} has a quote without an end, or a character that is not allowed")
        double, single, bare, equals, end = match.groups()
        quoted = double if double is not None else single
        if quoted is not None:
            words.append((re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL), True))
        else:
            words.append((bare or equals or end, False))
        position = match.end()
    return words
