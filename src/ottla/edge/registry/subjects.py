"""Names of subjects, and the contexts that they belong to.

`orders-value` is a subject in the default context. `:.test:orders-value` is the subject of the same name in the context
`.test`, which has schema ids of its own. `:.test:` alone names the context, for its configuration and mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_CONTEXT: Final = "."
#: the configuration of this context holds for all contexts that have none
GLOBAL_CONTEXT: Final = ".__GLOBAL"
_WILDCARD: Final = ":*:"
#: names with a meaning of their own in Confluent's registry
_RESERVED: Final = frozenset({"__GLOBAL", "__EMPTY"})


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """A subject, or a context if `name` is empty."""

    context: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Subject:
        """Return the subject that a text names.

        >>> Subject.parse("a"), Subject.parse(":.test:a").context, str(Subject.parse(":.:a")), Subject.parse(":.x").name
        (Subject(context='.', name='a'), '.test', 'a', '')
        """
        if text.startswith(":."):
            context, _, name = text[1:].partition(":")
            return cls(context, name)
        if text.startswith(_WILDCARD):
            return cls("*", text.removeprefix(_WILDCARD))
        return cls(DEFAULT_CONTEXT, text)

    def __str__(self) -> str:
        return f"{self.prefix}{self.name}"

    @property
    def prefix(self) -> str:
        """The text before the name: empty for the default context."""
        return "" if self.context == DEFAULT_CONTEXT else f":{self.context}:"

    @property
    def is_context(self) -> bool:
        return not self.name and self.context != DEFAULT_CONTEXT

    @property
    def is_default_context(self) -> bool:
        return not self.name and self.context == DEFAULT_CONTEXT


def normalize(text: str) -> str:
    """Return the name under which a subject is stored."""
    return str(Subject.parse(text))


def is_valid(text: str, *, may_be_context: bool = False) -> bool:
    """Return whether a subject can have this name: no control characters, not empty, not reserved."""
    if not text or any(ord(character) < 32 or ord(character) == 127 for character in text):
        return False
    subject = Subject.parse(text)
    if subject.context == "*":
        return False
    if subject.name in _RESERVED or (subject.context == GLOBAL_CONTEXT and not may_be_context):
        return False
    return bool(subject.name) or may_be_context


def context_prefix(context: str) -> str:
    """Return the prefix of the subjects of a context that a URL names: `test`, `.test` and `:.test:` are the same.

    Raise ValueError if it contains a colon inside.

    >>> context_prefix("test"), context_prefix(":.test:"), context_prefix(".")
    (':.test:', ':.test:', '')
    """
    name = context.removeprefix(":").removesuffix(":")
    if ":" in name:
        raise ValueError(f"the name of a context cannot contain a colon: {context!r}")
    name = name if name.startswith(".") else f".{name}"
    return "" if name == DEFAULT_CONTEXT else f":{name}:"


def beside(parent: str, text: str) -> str:
    """Return the subject that a reference or an alias in `parent` names. Its default context is that of `parent`."""
    subject = Subject.parse(text)
    if subject.context == DEFAULT_CONTEXT and not text.startswith(":.:"):
        return f"{Subject.parse(parent).prefix}{subject.name}"
    return str(subject)
