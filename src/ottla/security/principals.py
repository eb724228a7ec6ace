"""Names of principals, and the rules that make them from certificates and Kerberos names. Pure.

``ssl.principal.mapping.rules`` has rules for the distinguished name of a client certificate, and
``sasl.kerberos.principal.to.local.rules`` for names like ``primary/instance@REALM``. The first rule that matches wins.

Two names of clients must not become one principal unless a rule says so. Therefore no name is stripped or normalized,
classes of regular expressions such as \\s mean ASCII characters, as in Java, and a change of case never makes an ASCII
letter of another character. Names with control characters and long names are refused: no administrator can tell what
they are in a log or in a list of ACLs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from ottla.security.errors import AuthenticationFailed, SecurityConfigError

ANONYMOUS: Final = "User:ANONYMOUS"
_NAME_CHARS_MAX: Final = 1024

#: control characters of ASCII and of Latin-1, separators of lines and of paragraphs, halves of surrogate pairs
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: characters around the items of a list that are not part of them: those that Java trims
_BLANKS: Final = "".join(map(chr, range(33)))

_SSL_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\Z)")
_KERBEROS_RULE: Final = re.compile(
    r"\s*(?:(DEFAULT)|RULE:\[(\d+):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?(?:/([LU]))?)\s*(?:,|\Z)"
)
_KERBEROS_NAME: Final = re.compile(r"([^/@]+)(?:/([^/@]+))?(?:@([^/@]+))?\Z")

#: returns the user name for a distinguished name, or None if the rule does not match
_Rule = Callable[[str], "str | None"]


def user(name: str) -> str:
    """Return the principal of a user name. Raise AuthenticationFailed for a name that no user may have."""
    return f"User:{checked_name(name)}"


def checked_name(name: str) -> str:
    """Return a user name as it is. Raise AuthenticationFailed for a name that no user may have."""
    if not is_name(name):
        raise AuthenticationFailed(f"the user name is empty, too long or has control characters: {name[:100]!r}")
    return name


def is_name(name: str) -> bool:
    """Return whether this can be the name of a user: not empty, not too long, without control characters."""
    return 0 < len(name) <= _NAME_CHARS_MAX and _CONTROL.search(name) is None


def parse_super_users(setting: str) -> frozenset[str]:
    """Return the principals of ``super.users``: ``User:a;User:b``. Raise SecurityConfigError."""
    found = [each for text in setting.split(";") if (each := text.strip(_BLANKS))]
    for each in found:
        kind, colon, name = each.partition(":")
        if not (kind and colon and is_name(name)):
            raise SecurityConfigError(f"super.users: write {each!r} as User:NAME, and several with ';' between them")
    return frozenset(found)


class SslPrincipalMapper:
    """Makes user names from the distinguished names of client certificates."""

    def __init__(self, rules: str) -> None:
        """Raise SecurityConfigError if a rule cannot be read."""
        self._rules: list[_Rule] = []
        position = 0
        while position < len(rules):
            match = _SSL_RULE.match(rules, position)
            if match is None:
                raise SecurityConfigError(
                    f"ssl.principal.mapping.rules: rule {len(self._rules) + 1} is neither DEFAULT nor "
                    "RULE:pattern/replacement/ with an optional L or U"
                )
            default, pattern, replacement, case = match.groups()
            self._rules.append(_keep if default else _ssl_rule(pattern, replacement, case))
            position = match.end()

    def name(self, distinguished_name: str) -> str:
        """Return the user name for a distinguished name.

        Raise AuthenticationFailed if no rule matches, or if no user may have the name.
        """
        if len(distinguished_name) > _NAME_CHARS_MAX:
            raise AuthenticationFailed(f"the name of the certificate has more than {_NAME_CHARS_MAX} characters")
        for rule in self._rules or [_keep]:
            if (found := rule(distinguished_name)) is not None:
                return checked_name(found)
        raise AuthenticationFailed(f"no rule of ssl.principal.mapping.rules matches {distinguished_name!r}")


def _keep(name: str) -> str:
    return name


def _ssl_rule(pattern: str, replacement: str, case: str) -> _Rule:
    compiled = _compile("ssl.principal.mapping.rules", pattern)
    template = _template(replacement)

    def apply(name: str) -> str | None:
        # The whole name must match, so that CN=admin inside of another attribute is not taken for the name.
        match = compiled.fullmatch(name)
        return None if match is None else _with_case(match.expand(template), case)

    return apply


class KerberosPrincipalMapper:
    """Makes user names from Kerberos names."""

    def __init__(self, rules: str, default_realm: str) -> None:
        """Raise SecurityConfigError if a rule cannot be read."""
        self._realm = default_realm
        self._rules: list[Callable[[Sequence[str], str], str | None]] = []
        position = 0
        while position < len(rules):
            match = _KERBEROS_RULE.match(rules, position)
            if match is None:
                raise SecurityConfigError(
                    f"sasl.kerberos.principal.to.local.rules: rule {len(self._rules) + 1} is neither DEFAULT nor "
                    "RULE:[n:string](regexp)s/pattern/replacement/g with an optional /L or /U"
                )
            self._rules.append(self._default if match[1] else _kerberos_rule(match))
            position = match.end()
        self._rules = self._rules or [self._default]

    def _default(self, components: Sequence[str], realm: str) -> str | None:
        return components[0] if realm == self._realm else None

    def name(self, kerberos_name: str) -> str:
        """Return the user name for a Kerberos name. Raise AuthenticationFailed if no rule matches."""
        match = _KERBEROS_NAME.match(kerberos_name)
        if match is None or len(kerberos_name) > _NAME_CHARS_MAX:
            raise AuthenticationFailed(f"{kerberos_name!r} is no Kerberos name")
        primary, instance, realm = match.groups()
        if instance is None and realm is None:
            return checked_name(primary)
        components = [primary] if instance is None else [primary, instance]
        for rule in self._rules:
            if (found := rule(components, realm or "")) is not None:
                return checked_name(found)
        raise AuthenticationFailed(f"no rule of sasl.kerberos.principal.to.local.rules matches {kerberos_name!r}")


def _kerberos_rule(rule: re.Match[str]) -> Callable[[Sequence[str], str], str | None]:
    """Return the function of a rule. Raise SecurityConfigError if it has an invalid regular expression."""
    _, count, text, condition, pattern, replacement, repeat, case = rule.groups()
    setting = "sasl.kerberos.principal.to.local.rules"
    matches = _compile(setting, condition) if condition is not None else None
    replaces = _compile(setting, pattern) if pattern is not None else None
    template = _template(replacement or "")

    def apply(components: Sequence[str], realm: str) -> str | None:
        if len(components) != int(count):
            return None
        parts = [realm, *components]
        try:
            base = re.sub(r"\$(\d)", lambda found: parts[int(found[1])], text)
        except IndexError:
            return None
        if matches is not None and not matches.fullmatch(base):
            return None
        if replaces is not None:
            base = replaces.sub(template, base, count=0 if repeat else 1)
        if "/" in base or "@" in base:
            raise AuthenticationFailed(f"a rule of {setting} makes {base!r}, which still has a realm or an instance")
        return _with_case(base, case or "")

    return apply


def _compile(setting: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.replace("\\/", "/"), re.ASCII)
    except re.error as error:
        raise SecurityConfigError(f"{setting}: {pattern!r} is no regular expression: {error}") from None


def _template(replacement: str) -> str:
    """Return a replacement of Java's form, with $1, in Python's form."""
    escaped = replacement.replace("\\/", "/").replace("\\", r"\\")
    return re.sub(r"\$(\d)", r"\\g<\1>", escaped)


def _with_case(name: str, case: str) -> str:
    """Return the name in lower or upper case. Raise AuthenticationFailed if another character becomes an ASCII letter.

    For example the sign for Kelvin becomes a "k", so that two names which a certificate authority takes for different
    ones would become one.
    """
    if not case:
        return name
    changed = [each.lower() if case == "L" else each.upper() for each in name]
    if any(not before.isascii() and any(map(str.isascii, after)) for before, after in zip(name, changed, strict=True)):
        raise AuthenticationFailed(f"the case of {name!r} cannot be changed without a doubt")
    return "".join(changed)
