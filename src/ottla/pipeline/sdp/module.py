"""The Python file of a project for Spark Declarative Pipelines: imports, constants, then the definitions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.sdp.formats import value_text
from ottla.pipeline.sdp.text import literal
from ottla.pipeline.source_options import cluster_options

#: names of modules of `ottla.spark` that formats are made with
_IMPORTED: Final[Mapping[str, Sequence[str]]] = {
    "wire_format": ("OneSchema", "SchemasById", "read_schema", "read_schema_file"),
    "registry_schemas": ("RegistrySettings", "pin_schema", "register_schema"),
}


def module_text(
    declaration: Declaration, definitions: Sequence[str], constants: Mapping[str, str], modules: Collection[str]
) -> str:
    """Return the text of the file. `modules` are those of Python steps, which the project has in `modules/`."""
    used = "\n".join([*definitions, *constants.values()])
    values = [f"    {literal(name)}: {value_text(name, one)}" for name, one in cluster_options(declaration).items()]
    has_root = bool(modules) or "ROOT" in used
    standard = ["import sys"] if modules else []
    standard += ["import os"] if any("os.environ" in one for one in (*values, *constants.values())) else []
    standard += ["from pathlib import Path"] if has_root else []
    pyspark = ["from pyspark import pipelines as dp"]
    pyspark += ["from pyspark.sql import functions as F"] if "F." in used else []
    own = ["from ottla.spark import formats"] if "formats." in used else []
    for module, names in _IMPORTED.items():
        found = [name for name in names if f"{name}(" in used or f"{name}." in used]
        own += [f"from ottla.spark.{module} import {', '.join(found)}"] if found else []
    root = ["ROOT = Path(__file__).resolve().parents[1]"] if has_root else []
    steps = ['sys.path.insert(0, str(ROOT / "modules"))'] if modules else []
    steps += [f"import {name} as _{name.replace('.', '_')}" for name in sorted(modules)]
    lines = [
        f'"""The pipeline {declaration.name}, exported by \'ottla pipeline export --to sdp\'.',
        "",
        "spark-pipelines defines the name `spark` in this file.",
        '"""',
        "",
    ]
    for block in (sorted(standard), pyspark, own, root, steps):
        lines += [*block, ""] if block else []
    lines += ["CLUSTER = {", *(f"{value}," for value in values), "}"]
    lines += [f"{name} = {value}" for name, value in constants.items()]
    return "\n".join(lines) + "".join(f"\n\n\n{one}" for one in definitions) + "\n"
