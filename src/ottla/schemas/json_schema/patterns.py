"""Regular expressions of schemas: checked when a schema is parsed, matched with names of properties and with data.

RE2 matches in linear time and compiles within a limit of memory, so that no expression of a client takes long. RE2 has
no look-ahead and no back-references, which JSON Schema allows. Such an expression is accepted, and whether a name
matches it stays undecided. Escapes that RE2 writes differently are translated.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ottla.schemas.schema import Budget

#: memory limit of one compiled expression; compiling takes at most about 2 ms
_COMPILED_BYTES_MAX: Final = 256 << 10
#: steps for compiling an expression, and for one with counted repetitions, which RE2 expands
_COMPILE_STEPS: Final = 20
_REPETITION_STEPS: Final = 500
_MATCH_STEPS: Final = 4
#: RE2 may have to follow all states of an expression for each character: so many of them in one step
_STATES_PER_STEP: Final = 250
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|([pP])\{([A-Za-z_]+)\}|.)", re.DOTALL)
#: long names of Unicode's categories, of which RE2 has the short ones
_CATEGORIES: Final = {
    "Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Titlecase_Letter": "Lt", "Mark": "M",
    "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Punctuation": "P", "punct": "P", "Symbol": "S",
    "Separator": "Z", "Space_Separator": "Zs", "Other": "C", "Control": "Cc",
}  # fmt: skip
_UNKNOWN: Final = object()
#: how RE2's messages begin for an expression that is wrong in every dialect
_SYNTAX_ERRORS: Final = ("missing ", "unexpected ", "no argument ", "trailing ")


class Patterns:
    """Compiled expressions of one schema. Each one is compiled once in a parse or in a comparison.

    They are not kept longer: an expression of ten characters takes up to 26 KB, and a registry keeps parsed schemas.
    """

    __slots__ = ("_compiled",)

    def __init__(self) -> None:
        #: a compiled expression; a text that says what is wrong; or None if RE2 does not support it
        self._compiled: dict[str, Any] = {}

    def error_of(self, expression: str, budget: Budget) -> str | None:
        """Return what is wrong with the syntax of an expression, or None."""
        compiled = self._compile(expression, budget)
        return compiled if isinstance(compiled, str) else None

    def matches(self, expression: str, name: str, budget: Budget) -> bool | None:
        """Return whether a part of the name matches; None if RE2 does not support the expression."""
        compiled = self._compile(expression, budget)
        if compiled is None or isinstance(compiled, str):
            budget.spend(_MATCH_STEPS)
            return None
        budget.spend(_MATCH_STEPS + len(name) * compiled.programsize // _STATES_PER_STEP)
        try:
            return compiled.search(name) is not None
        except UnicodeEncodeError:  # an unpaired surrogate
            return None

    def release(self) -> None:
        """Forget the compiled expressions. Another thread may be using them, which compiles them again."""
        self._compiled = {}

    def _compile(self, expression: str, budget: Budget) -> Any:
        known = self._compiled.get(expression, _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        import re2

        budget.spend(_COMPILE_STEPS + len(expression) // 50 + (_REPETITION_STEPS if "{" in expression else 0))
        options = re2.Options()
        options.max_mem = _COMPILED_BYTES_MAX
        options.log_errors = False
        try:
            compiled = re2.compile(_ESCAPE.sub(_translate, expression), options)
        except re2.error as error:
            reason = error.args[0]
            message = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
            compiled = message if message.startswith(_SYNTAX_ERRORS) else None
        except UnicodeEncodeError:  # an unpaired surrogate
            compiled = None
        self._compiled[expression] = compiled
        return compiled


def _translate(escape: re.Match[str]) -> str:
    code, sign, category = escape.groups()
    if code is not None:
        return f"\\x{{{code}}}"
    return f"\\{sign}{{{_CATEGORIES[category]}}}" if category in _CATEGORIES else escape[0]
