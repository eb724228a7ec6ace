"""Load a pipeline from a file or a project directory, YAML or Python, or refuse it with everything that is wrong."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from ottla.pipeline.checks import check_declaration
from ottla.pipeline.declaration import Declaration
from ottla.pipeline.decorators import Pipeline
from ottla.pipeline.document import SIZE_BYTES_MAX, read_document
from ottla.pipeline.environments import Arguments, resolve_parameters
from ottla.pipeline.problems import BadDeclaration, Place, Problem, Problems
from ottla.pipeline.project import FindFiles, ProjectReader, ReadFile, find_no_files
from ottla.pipeline.reading import DeclarationReader

#: the top file of a project directory: the first of these that exists
TOP_FILES = ("pipeline.yaml", "pipeline.yml", "pipeline.py")
_SCHEMA_BYTES_MAX = 1024 * 1024
#: set on modules that were loaded here: another file of the same name may replace them
_MARK = "__ottla_pipeline__"


def load(path: str, arguments: Arguments | None = None) -> Declaration:
    """Load the pipeline in this file, YAML or `.py`, or in this project directory.

    `arguments` choose the environment and set parameters. Raise BadDeclaration, or OSError if a file cannot be read.
    """
    path = top_file(path)
    if path.endswith(".py"):
        return load_python(path, arguments)
    with Path(path).open("rb") as file:
        data = file.read(SIZE_BYTES_MAX + 1)
    return parse(data, path, read_beside(path), find_beside(path), arguments)


def top_file(path: str) -> str:
    """Return the file to begin with: the path itself, or the top file of a directory. Raise FileNotFoundError."""
    if not os.path.isdir(path):
        return path
    for name in TOP_FILES:
        if os.path.isfile(os.path.join(path, name)):
            return os.path.join(path, name)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.join(path, TOP_FILES[0]))


def parse(
    data: bytes,
    file: str,
    read_file: ReadFile,
    find_files: FindFiles = find_no_files,
    arguments: Arguments | None = None,
) -> Declaration:
    """Read a YAML declaration. `file` is its name in problems; the functions open and find files that it names."""
    problems = Problems()
    root = read_document(data, file, problems)
    root = ProjectReader(file, problems, read_file, find_files).complete(root)
    resolved = resolve_parameters(root, arguments or Arguments(), problems)
    reader = DeclarationReader(file, problems, read_file)
    declaration = reader.read(resolved.root)
    declaration = replace(declaration, environment=resolved.environment, parameters=resolved.shown_values)
    check_declaration(declaration, problems, reader.unzoned)
    problems.refuse_if_any()
    return declaration


def load_python(path: str, arguments: Arguments | None = None) -> Declaration:
    """Import a Python file and take the one Pipeline it makes. What the file itself raises is for its author to see."""
    found = [value for value in vars(_import_file(path)).values() if isinstance(value, Pipeline)]
    pipelines = list({id(one): one for one in found}.values())
    if len(pipelines) != 1:
        count = "no" if not pipelines else str(len(pipelines))
        instead = "make one: shop = Pipeline('shop', storage='lake')" if not pipelines else "keep one per file"
        raise BadDeclaration([Problem(Place(path), f"the file makes {count} pipelines", instead)])
    return pipelines[0].declaration(read_beside(path), find_beside(path), arguments)


def read_beside(path: str) -> ReadFile:
    """Return a function that reads files by their path relative to that of a declaration."""
    directory = Path(path).parent

    def read(name: str) -> bytes:
        with (directory / name).open("rb") as file:
            data = file.read(_SCHEMA_BYTES_MAX + 1)
        if len(data) > _SCHEMA_BYTES_MAX:
            raise OSError(f"it has more than {_SCHEMA_BYTES_MAX} bytes")
        return data

    return read


def find_beside(path: str) -> FindFiles:
    """Return a function that finds files in the directory of a declaration. Links that lead out of it are left out."""
    directory = Path(path).parent

    def find(pattern: str) -> Sequence[str]:
        inside = directory.resolve()
        found = [each for each in directory.glob(pattern) if each.is_file() and each.resolve().is_relative_to(inside)]
        return sorted(each.relative_to(directory).as_posix() for each in found)

    return find


def _import_file(path: str) -> ModuleType:
    name = Path(path).stem
    taken = sys.modules.get(name)
    if taken is not None and not hasattr(taken, _MARK):
        what = f"Python has a module {name!r} already"
        raise BadDeclaration([Problem(Place(path), what, f"rename the file, for instance to {name}_pipeline.py")])
    spec = importlib.util.spec_from_file_location(name, Path(path).resolve())
    assert spec is not None and spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    # Python steps are found again by module and name; modules beside the file as if Python had been started with it.
    setattr(module, _MARK, True)
    sys.modules[name] = module
    beside = str(Path(path).resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        place = Place(error.filename or path, error.lineno or 1, error.offset or 1)
        raise BadDeclaration([Problem(place, f"this is not Python: {error.msg}", "correct the line")]) from None
    except ImportError as error:
        what = f"a module cannot be imported: {error}"
        raise BadDeclaration([Problem(Place(path), what, "install it, or put it beside this file")]) from None
    return module
