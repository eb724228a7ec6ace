"""The parameters and environments of a project: which environment a command uses, and which value each parameter has.

A value comes from the first of these that has one: the command (`--param`), the variable `OTTLA_PARAM_<NAME>`, the
environment, the default. Environments also replace settings of the pipeline, such as `brokers` and `storage`.

Environments never share tables, checkpoints or the name of a pipeline on one cluster: a document that would let two of
them do so is refused.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from ottla.pipeline import keys
from ottla.pipeline.declaration import DEFAULT_BROKERS, default_checkpoints
from ottla.pipeline.document import Node
from ottla.pipeline.fields import Fields
from ottla.pipeline.parameters import HIDDEN_VALUE, Substitution, Value
from ottla.pipeline.problems import BadDeclaration, Place, Problems, suggestion

#: the parameter that has the name of the environment
ENVIRONMENT = "env"
ENVIRONMENT_VARIABLE = "OTTLA_ENV"
PARAMETER_VARIABLE = "OTTLA_PARAM_"

_SQL_PATHS = frozenset(
    {
        ("flows", "*", "sql"),
        ("flows", "*", "steps", "sql"),
        ("flows", "*", "expect", "that"),
        ("flows", "*", "to", "delete_when"),
        ("flows", "*", "to", "tombstone_when"),
    }
)
_SECRET_KEYS = frozenset({"properties", "spark", "openlineage"})
_FIXED_KEYS = frozenset({"parameters", "environments", "include"})
#: settings that are mappings: an environment adds to them
_MERGED = ("properties", "spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a command says about environment and parameters."""

    environment: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: environment variables of the process
    variables: Mapping[str, str] = field(default_factory=dict)
    #: whether a secret that is used and has no value is a problem; it is none to commands that only look
    needs_secrets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter as declared."""

    name: str
    type: str
    default: Value | None
    is_secret: bool
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment as declared: its values of parameters, and settings that replace those of the pipeline."""

    name: str
    values: Mapping[str, Value]
    settings: tuple[tuple[Node, Node], ...]
    is_default: bool
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A document without parameters. `values` has those of the parameters, secrets included."""

    root: Node
    environment: str
    values: Mapping[str, Value]

    @property
    def shown_values(self) -> dict[str, str]:
        """The values for output: secrets are hidden."""
        return {name: HIDDEN_VALUE if value.is_secret else value.text for name, value in self.values.items()}


def resolve_parameters(root: Node, arguments: Arguments, problems: Problems) -> Resolved:
    """Choose the environment and replace all parameters.

    Raise BadDeclaration, with the problems that are known already, if that cannot be done: without values the rest of
    the document cannot be judged.
    """
    if root.kind != "mapping":
        return Resolved(root=root, environment="", values={})
    own = Problems()
    resolver = _Resolver(root, own)
    chosen = resolver.choose(arguments)
    values = resolver.values(chosen, arguments) if not len(own) else {}
    resolved = root
    if not len(own):
        resolved, used = resolver.replaced(chosen, values, own)
        if arguments.needs_secrets:
            resolver.check_secrets(used)
    resolver.check_separation()
    if len(own):
        raise BadDeclaration([*problems, *own])
    return Resolved(root=resolved, environment=chosen.name if chosen is not None else "", values=values)


class _Resolver:
    def __init__(self, root: Node, problems: Problems) -> None:
        self._root = root
        self._problems = problems
        names = ("parameters", "environments")
        section = replace(keys.PIPELINE, keys={name: keys.PIPELINE.keys[name] for name in names})
        entries = tuple(entry for entry in root.entries if entry[0].text in names)
        fields = Fields(replace(root, entries=entries), section, "the pipeline", problems)
        self._place = fields.place_of("environments")
        self._place_of_parameters = fields.place_of("parameters")
        #: secrets for which neither the command nor a variable has a value
        self._missing_secrets: list[Parameter] = []
        self._parameters = {each.name: each for each in self._read_parameters(fields)}
        self._environments = {each.name: each for each in self._read_environments(fields)}

    # -- declarations -------------------------------------------------------------------------------------------------

    def _read_parameters(self, fields: Fields) -> Iterator[Parameter]:
        seen: dict[str, Node] = {}
        for name, node in fields.named("parameters"):
            called = f"parameter {name.text!r}"
            first = seen.setdefault(name.text.lower(), name)
            if first is not name:
                self._problems.add(name.place, f"{called} differs from {first.text!r} in case only", "rename one")
            if name.text.lower() == ENVIRONMENT:
                self._problems.add(name.place, f"${{{ENVIRONMENT}}} is the name of the environment", "rename it")
            inner = Fields(node, keys.PARAMETER, called, self._problems)
            type = inner.choice("type", keys.PARAMETER_TYPES)
            is_secret = inner.flag("secret", False)
            default = inner.node("default")
            if is_secret:
                inner.refuse("default", "a secret has no default", "remove it; set it when the pipeline runs")
                inner.refuse("type", "a secret is a string", "remove it")
                type, default = "string", None
            value = self._written_value(called, type, default) if default is not None else None
            yield Parameter(name=name.text, type=type, default=value, is_secret=is_secret, place=name.place)

    def _read_environments(self, fields: Fields) -> Iterator[Environment]:
        default: str | None = None
        for name, node in fields.named("environments"):
            inner = Fields(node, keys.ENVIRONMENT, f"environment {name.text!r}", self._problems)
            is_default = inner.flag("default", False)
            if is_default and default is not None:
                what = f"environments {default!r} and {name.text!r} are both the default"
                self._problems.add(inner.place_of("default"), what, "keep one")
            default = name.text if is_default else default
            settings = tuple(entry for entry in node.entries if entry[0].text in keys.ENVIRONMENT_SETTINGS)
            values = dict(self._environment_values(name.text, inner))
            yield Environment(name=name.text, values=values, settings=settings, is_default=is_default, place=name.place)

    def _environment_values(self, environment: str, fields: Fields) -> Iterator[tuple[str, Value]]:
        node = fields.node("parameters")
        if node is None:
            return
        if node.kind != "mapping":
            fields.problem(
                node.place, f"{fields.called}: 'parameters' is {node.kind_name}", "write 'name: value' lines"
            )
        for name, value in node.entries:
            parameter = self._parameters.get(name.text)
            if parameter is None:
                what = f"environment {environment!r} sets {name.text!r}, which is not a parameter"
                instead = suggestion(name.text, self._parameters, none="declare it under 'parameters'")
                self._problems.add(name.place, what, instead)
            elif parameter.is_secret:
                what = f"environment {environment!r} sets the secret {name.text!r}"
                self._problems.add(name.place, what, "remove it; set it when the pipeline runs")
            else:
                called = f"environment {environment!r}: parameter {name.text!r}"
                found = self._written_value(called, parameter.type, value)
                if found is not None:
                    yield name.text, found

    def _written_value(self, called: str, type: str, node: Node) -> Value | None:
        if node.kind in ("list", "mapping", "nothing"):
            self._problems.add(node.place, f"{called} is {node.kind_name}", "write one plain value")
            return None
        try:
            return Value.parse(type, str(node.is_true).lower() if node.kind == "flag" else node.text)
        except ValueError as error:
            self._problems.add(node.place, f"{called}: {node.text!r} is not of type {type}", f"write {error}")
            return None

    # -- what a command uses ------------------------------------------------------------------------------------------

    def choose(self, arguments: Arguments) -> Environment | None:
        known = self._environments
        if not known:
            if arguments.environment is not None:
                what = f"there is no environment {arguments.environment!r}: the pipeline has none"
                self._problems.add(self._place, what, "remove --env, or declare it under 'environments'")
            return None
        name, origin = arguments.environment, "--env"
        if name is None:
            name, origin = arguments.variables.get(ENVIRONMENT_VARIABLE) or None, ENVIRONMENT_VARIABLE
        if name is None:
            name = next((each.name for each in known.values() if each.is_default), None)
        if name is None:
            what = "the pipeline has environments, and none was chosen"
            instead = f"add --env with one of {', '.join(known)}, or write default: true in one of them"
            self._problems.add(self._place, what, instead)
            return None
        if name not in known:
            what = f"there is no environment {name!r} ({origin})"
            self._problems.add(self._place, what, suggestion(name, known, none=""))
            return None
        return known[name]

    def values(self, chosen: Environment | None, arguments: Arguments) -> dict[str, Value]:
        for name in arguments.parameters:
            if name not in self._parameters:
                instead = suggestion(name, self._parameters, none="remove it: the pipeline has no parameters")
                self._problems.add(self._place_of_parameters, f"--param {name}: there is no such parameter", instead)
        found: dict[str, Value] = {}
        for parameter in self._parameters.values():
            value = self._value_of(parameter, chosen, arguments)
            if value is not None:
                found[parameter.name] = value
        if chosen is not None:
            found[ENVIRONMENT] = Value("string", chosen.name)
        return found

    def _value_of(self, parameter: Parameter, chosen: Environment | None, arguments: Arguments) -> Value | None:
        name = parameter.name
        variable = PARAMETER_VARIABLE + name.upper()
        given = [(f"--param {name}", arguments.parameters.get(name)), (variable, arguments.variables.get(variable))]
        for origin, text in given:
            if text is None:
                continue
            try:
                return Value.parse(parameter.type, text, is_secret=parameter.is_secret)
            except ValueError as error:
                shown = "the value" if parameter.is_secret else repr(text)
                self._problems.add(
                    parameter.place, f"{origin}: {shown} is not of type {parameter.type}", f"write {error}"
                )
                return None
        if chosen is not None and name in chosen.values:
            return chosen.values[name]
        if parameter.default is not None:
            return parameter.default
        if parameter.is_secret:
            self._missing_secrets.append(parameter)
            return Value(parameter.type, HIDDEN_VALUE, is_secret=True)
        where = f" in environment {chosen.name!r}" if chosen is not None else ""
        advice = f"add --param {name}=VALUE, set {variable}, or write a default"
        self._problems.add(parameter.place, f"the parameter {name!r} has no value{where}", advice)
        return None

    def check_secrets(self, used: Collection[str]) -> None:
        """Add a problem for each secret without a value that the document uses."""
        for parameter in self._missing_secrets:
            if parameter.name in used:
                variable = PARAMETER_VARIABLE + parameter.name.upper()
                self._problems.add(parameter.place, f"the secret {parameter.name!r} has no value", f"set {variable}")

    def replaced(
        self, chosen: Environment | None, values: Mapping[str, Value], problems: Problems
    ) -> tuple[Node, Collection[str]]:
        """Return the document as this environment with these values makes it, and the parameters that it uses."""
        root = _overlay(self._root, chosen.settings) if chosen is not None else self._root
        substitution = Substitution(values, problems, _SQL_PATHS, _SECRET_KEYS, _FIXED_KEYS)
        return substitution.apply(root), substitution.used

    # -- separation ---------------------------------------------------------------------------------------------------

    def check_separation(self) -> None:
        """Add a problem for environments that would share tables, checkpoints, or the name on the same brokers."""
        for one, two in combinations(self._environments.values(), 2):
            first, second = self._settings_of(one), self._settings_of(two)
            for key in ("storage", "checkpoints"):
                if key == "checkpoints" and first.get("storage") == second.get("storage"):
                    continue
                if first.get(key) is not None and first.get(key) == second.get(key):
                    what = f"environments {one.name!r} and {two.name!r} have the same {key} {first[key]!r}"
                    self._problems.add(two.place, what, f"write another {key} in one, or use ${{{ENVIRONMENT}}} in it")
            same = [first.get(key) == second.get(key) for key in ("name", "brokers")]
            if all(same) and first.get("name") is not None:
                what = f"environments {one.name!r} and {two.name!r} have the same name {first['name']!r} and brokers"
                advice = f"the name is unique in a cluster: write name: {first['name']}_${{{ENVIRONMENT}}}"
                self._problems.add(two.place, what, advice)

    def _settings_of(self, environment: Environment) -> dict[str, str]:
        """Return the settings that the files give an environment, without those that a command decides."""
        values = {name: each.default for name, each in self._parameters.items() if each.default is not None}
        values |= environment.values
        values[ENVIRONMENT] = Value("string", environment.name)
        unknown = Problems()
        root, _ = self.replaced(environment, values, unknown)
        places = {problem.place for problem in unknown}
        settings = {
            key.text: _path(value.text) if key.text in ("storage", "checkpoints") else value.text
            for key, value in root.entries
            if key.text in ("name", "brokers", "storage", "checkpoints") and value.place not in places
        }
        if not any(key.text == "brokers" for key, _ in root.entries):
            settings["brokers"] = DEFAULT_BROKERS
        if "storage" in settings and not any(key.text == "checkpoints" for key, _ in root.entries):
            settings["checkpoints"] = default_checkpoints(settings["storage"])
        return settings


def _overlay(root: Node, settings: tuple[tuple[Node, Node], ...]) -> Node:
    """Return a document with the settings of an environment in place of its own."""
    own = {key.text: (key, value) for key, value in root.entries}
    for key, value in settings:
        if key.text in _MERGED and key.text in own and own[key.text][1].kind == value.kind == "mapping":
            before = {name.text: (name, each) for name, each in own[key.text][1].entries}
            before |= {name.text: (name, each) for name, each in value.entries}
            value = replace(value, entries=tuple(before.values()))
        own[key.text] = (key, value)
    return replace(root, entries=tuple(own.values()))


def _path(text: str) -> str:
    """Return one spelling of a path or URL.

    >>> [_path(text) for text in ("./lake/", "lake", "s3://bucket/lake/")]
    ['lake', 'lake', 's3://bucket/lake']
    """
    return text.rstrip("/") if "://" in text else posixpath.normpath(text)
