"""``CREATE TABLE name USING ottla OPTIONS (...)``: how the options of a table in Spark's catalog reach a Python source.

Spark calls `DataSource.schema` once, when the table is created, with the options and the properties of the table. It
stores the schema in its catalog. When the table is read or written by its name, Spark 4.3 gives a Python data source
this schema, but none of the table's options. So the options are stored in the metadata of the last column, from where
`table_options` takes them. `INSERT INTO` gives the columns of the query the metadata of the columns of the table, and
no other, so rows of another table of this kind bring no foreign options along. A streaming write gives the columns of
the query as they are: their metadata belongs to the table that is read, so it is never used.

Metadata of a column follows the column into DataFrames and into the Parquet files that Spark writes. Passwords are
therefore refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping

from pyspark.sql.types import StructField, StructType

from ottla.spark.option_table import Option, Use
from ottla.spark.option_table import names as option_names
from ottla.spark.options import OptionError, Options

#: Spark sets this property for every table that it creates
_CREATED = "provider"
#: Spark passes what is in the clause OPTIONS with this prefix, and also without
_OPTION_PREFIX = "option."
#: the clause LOCATION, and the option path, which Spark turns into it
_LOCATION = "location"
_SECRET = re.compile(r"secret|password|token|access.?key|jaas|user\.info", re.IGNORECASE)


class NamedTables:
    """Stores and finds the options of tables of one format."""

    def __init__(
        self, format_name: str, options: Iterable[Option], *, identity: str, prefixes: Collection[str]
    ) -> None:
        self._format = format_name
        self._options = tuple(options)
        #: a query that sets this option itself does not use the options of a table
        self._identity = identity
        self._prefixes = tuple(prefixes)
        self._key = f"{format_name}.options"

    def creation_options(self, options: Mapping[str, str]) -> dict[str, str] | None:
        """Return the options of the table if Spark creates one, else None. Raise OptionError if they cannot be stored.

        Table properties (``TBLPROPERTIES``, the owner) are not options and are left out.
        """
        lowered = {name.lower(): str(value) for name, value in options.items()}
        if lowered.get(_CREATED, "").lower() != self._format:
            return None
        found = {
            name.removeprefix(_OPTION_PREFIX): value
            for name, value in lowered.items()
            if name.startswith(_OPTION_PREFIX)
        }
        if _LOCATION in lowered:
            found["path"] = lowered[_LOCATION]
        secret = next(filter(_SECRET.search, found), None)
        if secret is not None:
            raise OptionError(
                f"CREATE TABLE would store the option {secret} in the schema of the table, where everyone who can read "
                "the table sees it: leave it out and set it in each query, as in SELECT ... FROM name WITH "
                f"('{secret}' = '...'), or use CREATE TEMPORARY VIEW"
            )
        plain = {name: value for name, value in found.items() if not name.startswith(self._prefixes)}
        Options(plain, option_names(self._options, Use.READ | Use.WRITE))
        return found

    def with_options(self, schema: StructType, options: Mapping[str, str]) -> StructType:
        """Return the schema with the options of a new table in it."""
        *others, last = schema.fields
        metadata = {**(last.metadata or {}), self._key: json.dumps(dict(options), sort_keys=True)}
        return StructType([*others, StructField(last.name, last.dataType, last.nullable, metadata)])

    def merged(self, options: Mapping[str, str], schema: StructType, use: Use) -> dict[str, str]:
        """Return the options of a query and, below them, those of the table that the schema belongs to.

        A query that names a cluster or a path itself is not a query of the table: its schema may be that of a table
        only because its rows come from there. The same holds for every streaming write. Raise OptionError if neither
        the query nor the table names a cluster or a path.
        """
        given = {name.lower(): value for name, value in options.items()}
        if self._identity in given:
            return given
        known = {name.lower() for name in option_names(self._options, use)}
        stored = {
            name: value
            for name, value in ({} if use is Use.WRITE_STREAM else self._stored(schema)).items()
            if name in known or name == "path" or name.startswith(self._prefixes)
        }
        if self._identity not in stored:
            raise OptionError(
                f"the option {self._identity} is missing. If this is a table of Spark's catalog: Spark keeps the "
                f"options of a table for {self._format} only if it was created without a list of columns and without "
                "AS SELECT, and writeStream.toTable() does not use them; set the options in the query, or create the "
                "table again"
            )
        return stored | given

    def _stored(self, schema: StructType) -> dict[str, str]:
        for field in schema.fields:
            text = (field.metadata or {}).get(self._key)
            if text is not None:
                return {str(name): str(value) for name, value in json.loads(text).items()}
        return {}
