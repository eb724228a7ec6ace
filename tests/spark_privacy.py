"""Finds uses of parts of Spark that PySpark does not make public, in the source text of a module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

#: modules of PySpark whose names are documented for users
PUBLIC_MODULES = {
    "pyspark",
    "pyspark.errors",
    "pyspark.pipelines",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.functions",
    "pyspark.sql.streaming",
    # Named by the documentation of DataSourceStreamReader: limits of a batch, SupportsTriggerAvailableNow.
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.types",
    "pyspark.testing",
}
#: a class of Spark's JVM that its guide tells users to name in a setting
_PUBLIC_CLASSES = {"org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
#: classes of the JVM, PySpark's modules by name, local properties of queries and variables that Spark's processes share
_PRIVATE_TEXT = re.compile(
    r"org\.apache\.spark\.|^pyspark\.\w+\.|^(streaming\.sql|sql\.streaming)\.\w+$|^spark\.jobGroup\.|^PYSPARK_GATEWAY|"
    r"^spark\.watermarkDelayMs$|QueryContextLogger$|^SPARK_PYTHON_RUNTIME$"
)
#: members of PySpark's classes that a subclass may override
_JAVA_MEMBERS = re.compile(r"_j(c|conf|df|listener|query|reader|sc|sparkSession|sq|vm|write|writer)$")
#: methods of objects of the JVM
_JAVA_METHODS = {"getClass", "queryExecution", "sessionState", "sharedState", "lastExecution"}
#: documented in spite of the underscore
_PUBLIC_ATTRIBUTES = {"_replace", "_asdict", "_fields", "_make", "_getframe", "_exit"}


def private_uses(text: str) -> list[str]:
    """Return the uses in this module as "line: use". Imports for type checkers alone do not count."""
    tree = ast.parse(text)
    own = _own_names(tree)
    return [f"{node.lineno}: {use}" for node in _running(tree) for use in _uses(node, own)]


def _uses(node: ast.AST, own: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names if _is_private_module(name.name))
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if _is_private_module(module):
            yield module
        elif module.partition(".")[0] == "pyspark":
            yield from (f"{module}.{name.name}" for name in node.names if name.name.startswith("_"))
    elif isinstance(node, ast.Attribute):
        private = node.attr.startswith("_") and not node.attr.endswith("__") and node.attr not in own
        if (private and node.attr not in _PUBLIC_ATTRIBUTES) or node.attr in _JAVA_METHODS:
            yield ast.unparse(node)
    elif isinstance(node, ast.FunctionDef) and _JAVA_MEMBERS.match(node.name):
        yield f"def {node.name}"
    elif isinstance(node, ast.Constant) and _is_private_text(node.value):
        yield repr(node.value)


def _is_private_module(name: str) -> bool:
    root = name.partition(".")[0]
    return root == "py4j" or (root == "pyspark" and name not in PUBLIC_MODULES)


def _is_private_text(value: object) -> bool:
    return isinstance(value, str) and value not in _PUBLIC_CLASSES and _PRIVATE_TEXT.search(value) is not None


def _own_names(tree: ast.AST) -> set[str]:
    """Return the names that this module defines: its functions and classes, and the attributes of self."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            own.add(node.attr)
    return own


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but docstrings and what stands under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node
        yield from _running(node)
