"""A reader of SQL predicates, such as an expectation's: does it parse, and which columns does it ask for?

It knows the grammar of Spark's expressions as far as predicates on one row need it. Where something rarer begins, such
as a window, it reports neither flaws nor columns: Spark analyses the predicate later. A predicate that Spark takes must
not be refused; `tests/spark/test_sql_readers.py` compares with Spark's parser. Why no SQL library:
docs/decisions/0011-parsers.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.pipeline.sql import Flaw, Token, tokenize

_COMPARISONS = ("=", "==", "<", ">", "<=", ">=", "<>", "!=", "<=>", "!<", "!>")
_ARITHMETIC = ("+", "-", "*", "/", "%", "&", "|", "^", "||", "<<", ">>", ">>>")
#: words that cannot begin a value; a column of that name would be in backticks
_NO_VALUE = frozenset({"AND", "OR", "IN", "LIKE", "ILIKE", "RLIKE", "BETWEEN", "NOT"})
_LITERALS = frozenset({"TRUE", "FALSE", "NULL"})
_TYPED = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIME", "X", "BINARY"})
#: functions that are called without parentheses
_BARE_FUNCTIONS = frozenset(
    {"CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "CURRENT_USER", "USER", "SESSION_USER", "LOCALTIMESTAMP"}
)
#: functions whose arguments have words between them instead of commas, or units in them
_ODD_ARGUMENTS = frozenset(
    {"EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION", "OVERLAY", "TIMESTAMPADD", "TIMESTAMPDIFF", "DATEADD"}
    | {"DATE_ADD", "DATEDIFF", "DATE_DIFF"}
)
_UNITS = frozenset(
    unit + plural
    for unit in (
        "YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND",
        "MILLISECOND", "MICROSECOND", "NANOSECOND",
    )
    for plural in ("", "S")
)  # fmt: skip
_DEPTH_MAX = 40


@dataclass(frozen=True, slots=True)
class Predicate:
    """What is known of a predicate. `columns` are the first parts of the names it asks for."""

    flaws: tuple[Flaw, ...]
    columns: tuple[Token, ...]


def read_predicate(text: str) -> Predicate:
    """Read one predicate.

    >>> [column.text for column in read_predicate("amount > 0 AND currency IN ('EUR', 'CZK')").columns]
    ['amount', 'currency']
    >>> read_predicate("amount >").flaws[0].what
    "a value is missing after '>'"
    """
    tokens, flaws = tokenize(text)
    if flaws:
        return Predicate(tuple(flaws), ())
    if not tokens:
        return Predicate((Flaw(0, "the predicate is empty", "write a condition, such as amount > 0"),), ())
    reader = _Reader(tokens, len(text))
    try:
        reader.expression()
        if reader.current is not None:
            reader.refuse_rest()
    except _Broken as broken:
        return Predicate((broken.flaw,), ())
    except _Unsure:
        return Predicate((), ())
    columns = [token for token in reader.columns if token.text.lower() not in reader.parameters]
    return Predicate((), tuple(columns))


class _Broken(Exception):
    """The predicate does not parse."""

    def __init__(self, position: int, what: str, instead: str) -> None:
        super().__init__(what)
        self.flaw = Flaw(position, what, instead)


class _Unsure(Exception):
    """Something begins that this reader does not know: Spark decides."""


@dataclass(slots=True)
class _Reader:
    """Recursive descent: expression > condition > value > factor."""

    tokens: list[Token]
    length: int
    at: int = 0
    depth: int = 0
    columns: list[Token] = field(default_factory=list)
    #: of lambdas, in lower case
    parameters: set[str] = field(default_factory=set)

    @property
    def current(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def expression(self) -> None:
        self.depth += 1
        if self.depth > _DEPTH_MAX:
            raise _Unsure
        self._condition()
        while self._take_word("AND", "OR"):
            self._condition()
        self.depth -= 1

    def refuse_rest(self) -> None:
        token = self.current
        assert token is not None
        before = self.tokens[self.at - 1]
        if token.word in ("OVER", "FILTER", "WITHIN", "IGNORE", "RESPECT"):
            raise _Unsure
        if token.is_sign(";"):
            raise _Broken(token.position, "a predicate ends without ;", "remove it")
        if before.word == "SELECT" or token.word in ("SELECT", "FROM", "WHERE"):
            what = "a predicate is a condition on one row, not a query"
            raise _Broken(token.position, what, "write it as amount > 0")
        what = f"no operator stands between {before.text!r} and {token.text!r}"
        raise _Broken(token.position, what, "write a comparison, AND or OR between them")

    def _condition(self) -> None:
        while self._take_word("NOT"):
            pass
        self._value()
        while self._condition_rest():
            pass

    def _condition_rest(self) -> bool:
        if self._take_sign(*_COMPARISONS):
            self._value()
            return True
        if self._take_word("IS"):
            self._take_word("NOT")
            if self._take_word("DISTINCT"):
                self._need_word("FROM")
                self._value()
            else:
                self._need_word("NULL", "TRUE", "FALSE", "UNKNOWN")
            return True
        negated = self._take_word("NOT")
        if self._take_word("BETWEEN"):
            self._comparison()
            self._need_word("AND")
            self._comparison()
        elif self._take_word("IN"):
            self._need_sign("(")
            self._list(")")
        elif self._take_word("LIKE", "ILIKE"):
            if self._take_word("ANY", "SOME", "ALL"):
                self._need_sign("(")
                self._list(")")
                self._value_rest()
            else:
                self._comparison()
                if self._take_word("ESCAPE"):
                    self._value()
        elif self._take_word("RLIKE", "REGEXP"):
            self._value()
        elif negated:
            self._need_word("BETWEEN", "IN", "LIKE", "RLIKE")
        else:
            return False
        return True

    def _comparison(self) -> None:
        self._value()
        while self._take_sign(*_COMPARISONS):
            self._value()

    def _value(self) -> None:
        self._factor()
        self._value_rest()

    def _value_rest(self) -> None:
        while self._take_sign(*_ARITHMETIC) or self._take_word("DIV"):
            self._factor()

    def _factor(self) -> None:
        while self._take_sign("+", "-", "~", "!") or self._take_word("NOT"):
            pass
        token, first = self.current, len(self.columns)
        if (
            token is None
            or token.is_sign(")", "]", ",")
            or (token.word in _NO_VALUE and not self._is_compared_name(token))
            or token.is_sign(*_COMPARISONS, *_ARITHMETIC)
        ):
            raise self._missing_value(token)
        self.at += 1
        if token.is_sign("("):
            self._parenthesis(token)
        elif token.kind == "string":
            while self.current is not None and self.current.kind == "string":
                self.at += 1
        elif token.kind in ("word", "quoted"):
            self._named(token)
        elif token.kind == "sign":
            # Parameter markers and whatever else Spark may read.
            raise _Unsure
        self._postfix(first)

    def _is_compared_name(self, token: Token) -> bool:
        """Return whether a word such as LIKE is the name of a column: a comparison follows."""
        following = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else None
        return token.word != "NOT" and following is not None and following.is_sign(*_COMPARISONS)

    def _parenthesis(self, token: Token) -> None:
        if self.current is not None and self.current.word in ("SELECT", "WITH"):
            what = "a predicate looks at one row and cannot query tables"
            raise _Broken(token.position, what, "join in a step before")
        first = len(self.columns)
        self._list(")")
        if self.current is not None and self.current.is_sign("->"):
            self.parameters.update(column.text.lower() for column in self.columns[first:])
            self.at += 1
            self.expression()

    def _named(self, token: Token) -> None:
        following = self.current
        if token.word == "CASE" and following is not None and not following.is_sign(*_COMPARISONS, "."):
            self._case()
        elif (
            token.word == "INTERVAL"
            and following is not None
            and (following.kind in ("number", "string") or following.is_sign("-"))
        ):
            self._interval()
        elif token.word in _TYPED and following is not None and following.kind == "string":
            self.at += 1
        elif following is not None and following.is_sign("("):
            self.at += 1
            self._arguments(token.word)
        elif following is not None and following.is_sign("->"):
            self.parameters.add(token.text.lower())
            self.at += 1
            self.expression()
        elif following is not None and following.is_sign("=>"):
            self.at += 1
            self.expression()
        elif token.word not in _LITERALS and token.word not in _BARE_FUNCTIONS:
            self.columns.append(token)

    def _postfix(self, first: int) -> None:
        """Read what may follow a value. The columns of the value are those from `first` on."""
        while self.current is not None:
            if self._take_sign("."):
                if self.current is not None and self.current.is_sign("*"):
                    # All columns of a table or of a struct: the name may be either.
                    del self.columns[first:]
                self.at += 1
                if self.current is not None and self.current.is_sign("("):
                    # A function of a schema: what stood before was no column.
                    raise _Unsure
            elif self._take_sign(":") or self._take_word("COLLATE"):
                # A path into a variant, which may begin with an index in brackets, or the name of a collation.
                if self.current is None or not self.current.is_sign("["):
                    self.at += 1
            elif self._take_sign("["):
                self._list("]")
            elif self._take_sign("::"):
                self.at += 1
                if self._take_sign("("):
                    self._skip_to(")")
                elif self.current is not None and self.current.is_sign("<"):
                    raise _Unsure
            else:
                return

    def _arguments(self, function: str) -> None:
        if function in ("CAST", "TRY_CAST"):
            self.expression()
            self._need_word("AS")
            self._skip_to(")")
        elif function in _ODD_ARGUMENTS:
            self._odd_arguments()
        elif not self._take_sign(")"):
            self._take_word("DISTINCT", "ALL")
            if self._take_sign("*"):
                self._need_sign(")")
            else:
                self._list(")", named=function == "STRUCT")

    def _odd_arguments(self) -> None:
        """Read usual arguments but for units, such as DAY; skip arguments with words between them."""
        at, depth, first = self.at, self.depth, len(self.columns)
        try:
            if not self._take_sign(")"):
                self._list(")")
            self.columns[first:] = [one for one in self.columns[first:] if one.word not in _UNITS]
        except _Broken:
            self.at, self.depth = at, depth
            del self.columns[first:]
            self._skip_to(")")

    def _list(self, closing: str, *, named: bool = False) -> None:
        """Read values with commas between them. `named`: a name may follow each, as in struct(a AS b, c d)."""
        while True:
            self.expression()
            if self._take_word("AS") or (
                named and self.current is not None and self.current.kind in ("word", "quoted")
            ):
                self.at += 1
            if not self._take_sign(","):
                break
        self._need_sign(closing)

    def _case(self) -> None:
        if self.current is None or self.current.word != "WHEN":
            self.expression()
        self._need_word("WHEN")
        while True:
            self.expression()
            self._need_word("THEN")
            self.expression()
            if not self._take_word("WHEN"):
                break
        if self._take_word("ELSE"):
            self.expression()
        self._need_word("END")

    def _interval(self) -> None:
        while True:
            self._take_sign("-")
            self.at += 1
            if self.current is None or self.current.word not in _UNITS:
                return
            self.at += 1
            if self._take_word("TO"):
                self.at += 1
            if self.current is None or self.current.kind not in ("number", "string"):
                return

    def _skip_to(self, closing: str) -> None:
        depth = 1
        while self.current is not None:
            token = self.current
            self.at += 1
            depth += token.is_sign("(") - token.is_sign(")")
            if depth == 0 and token.is_sign(closing):
                return
        raise _Unsure

    def _take_word(self, *words: str) -> bool:
        token = self.current
        if token is None or token.word not in words or token.kind != "word":
            return False
        self.at += 1
        return True

    def _take_sign(self, *signs: str) -> bool:
        token = self.current
        if token is None or not token.is_sign(*signs):
            return False
        self.at += 1
        return True

    def _need_word(self, *words: str) -> None:
        if not self._take_word(*words):
            raise self._missing(" or ".join(words))

    def _need_sign(self, sign: str) -> None:
        if not self._take_sign(sign):
            if self.current is not None and sign in (")", "]"):
                self.refuse_rest()
            raise self._missing(repr(sign))

    def _missing(self, wanted: str) -> _Broken:
        before = self.tokens[self.at - 1].text
        position = self.current.position if self.current is not None else self.length
        return _Broken(position, f"{wanted} is missing after {before!r}", f"write {wanted} there")

    def _missing_value(self, token: Token | None) -> _Broken:
        position = token.position if token is not None else self.length
        before = self.tokens[self.at - 1] if self.at else None
        if token is not None and before is not None and before.text == token.text and token.text in ("&", "|"):
            word = "AND" if token.text == "&" else "OR"
            return _Broken(position, f"{token.text * 2} is not an operator of SQL", f"write {word}")
        if before is None:
            return _Broken(position, "a value is missing at the beginning", "begin with a column, such as amount > 0")
        return _Broken(position, f"a value is missing after {before.text!r}", "write a column or a value there")
