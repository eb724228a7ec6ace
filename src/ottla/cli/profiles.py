"""Profiles: named connections in a file of the user, and which of them a command uses.

A command uses the profile of --profile, else that of the environment, else that of `ottla profile use`. A profile that
--profile names takes precedence over the environment; another one does not. The properties of a profile contain logins,
which belong to its address: with another address they are used only if --profile names the profile.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ottla.admin.failure import Failure, NotFound
from ottla.model.printable import shown

PROFILE_ENVIRONMENT = "OTTLA_PROFILE"
MASK = "********"
_CHOSEN = "ottla.profile"
_VERSION = 1
_FILE_BYTES_MAX = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECRET = re.compile(r"password|secret|token|jaas|user\.info|credential|\.pem$|\.keystore\.key$")
_NOT_SECRET = re.compile(r"\.(url|location|file|id)$")
_LOGIN_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named connection. What is not set has the default of the commands."""

    bootstrap: str | None = None
    #: the path of a file of client properties
    command_config: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    registry: str | None = None
    registry_properties: Mapping[str, str] = field(default_factory=dict)


#: attributes, and their names in the file and in the output
FIELDS = {
    "bootstrap": "bootstrap.servers", "command_config": "command.config", "properties": "properties",
    "registry": "registry", "registry_properties": "registry.properties",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """The contents of the file."""

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    #: the one that commands use unless they name another one
    current: str | None = None

    def get(self, name: str) -> Profile:
        """Return a profile. Raise NotFound, with the most similar name."""
        if name not in self.by_name:
            import difflib

            near = difflib.get_close_matches(name, self.by_name, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}? " if near else ""
            raise NotFound(f"profile {shown(name)} does not exist; {hint}'ottla profile list' shows all")
        return self.by_name[name]


@dataclass(frozen=True, slots=True)
class Choice:
    """The profile of a command."""

    profile: Profile
    #: whether --profile names it
    is_named: bool

    def address(self, given: str | None, own: str | None, environment: str) -> tuple[str | None, bool]:
        """Return the address, and whether the properties of the profile are used with it.

        `given` is the address of the options, `own` that of the profile, `environment` the name of a variable.
        """
        inherited = os.environ.get(environment)
        found = given or ((own or inherited) if self.is_named else (inherited or own))
        return found, self.is_named or found == own


def chosen() -> Choice | None:
    """Return the profile of the command that runs, if there is one. Raise NotFound if it does not exist."""
    context = click.get_current_context(silent=True)
    named = context.meta.get(_CHOSEN) if context is not None else None
    if named is not None:
        return Choice(load().get(named), True)
    from_environment = os.environ.get(PROFILE_ENVIRONMENT)
    if from_environment == "":
        return None
    profiles = load()
    name = from_environment or profiles.current
    return Choice(profiles.get(name), False) if name is not None else None


class _ProfileName(click.ParamType):  # type: ignore[type-arg]
    name = "profile"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            names = load().by_name
        except (Failure, OSError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


PROFILE_NAME = _ProfileName()


def _choose(ctx: click.Context, parameter: click.Parameter, name: str | None) -> None:
    if name is not None:
        ctx.meta[_CHOSEN] = name


_option = click.option(
    "--profile",
    metavar="NAME",
    type=PROFILE_NAME,
    is_eager=True,
    expose_value=False,
    callback=_choose,
    help=f"Use this profile.  [env: {PROFILE_ENVIRONMENT}; default: that of 'ottla profile use']",
)


def profile_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --profile, unless other options of the command have added it."""
    present = getattr(function, "__click_params__", ())
    return function if any(each.name == "profile" for each in present) else _option(function)


# Values that must not be shown


def is_secret(name: str) -> bool:
    """Return whether the values of this property are not to be shown.

    >>> [is_secret(f"sasl.{name}") for name in ("password", "jaas.config", "oauthbearer.token.endpoint.url")]
    [True, True, False]
    """
    return bool(_SECRET.search(name.lower())) and not _NOT_SECRET.search(name.lower())


def masked(name: str, value: str) -> str:
    """Return the value of a property with secrets replaced, also the login in a URL."""
    return MASK if is_secret(name) else _LOGIN_IN_URL.sub(f"{MASK}@", value)


# The file


def profiles_path() -> Path:
    """Return the path of the file, in the configuration directory of the user."""
    directory = os.environ.get("XDG_CONFIG_HOME", "")
    # By the specification of the directories, a relative path is ignored.
    parent = Path(directory) if os.path.isabs(directory) else Path.home() / ".config"
    return parent / "ottla" / "profiles.json"


def load() -> Profiles:
    """Return the profiles of the user. Raise Failure if the file cannot be used. Warn if others can read it."""
    path = profiles_path()
    try:
        with open(path, encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                click.echo(f"warning: other users may read the logins in {path}; run 'chmod 600 {path}'", err=True)
            text = file.read(_FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Profiles()
    except UnicodeDecodeError:
        raise _unusable(path, "it is not UTF-8") from None
    if len(text) > _FILE_BYTES_MAX:
        raise _unusable(path, f"it has more than {_FILE_BYTES_MAX} bytes")
    try:
        return _parse(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise _unusable(path, str(error)) from None


def check_name(name: str) -> str:
    """Return the name of a new profile. Raise ValueError if it is not valid."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{shown(name)!r} is no name of a profile: use up to 64 letters, digits, dots, _ and -")
    return name


def change(apply: Callable[[Profiles], Profiles]) -> None:
    """Replace the file by what `apply` returns. Only this user can read it; readers see the old or the new one."""
    path = profiles_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path.parent):
        # The file may be a link into a directory that is under version control.
        target = Path(os.path.realpath(path))
        text = json.dumps(_as_json(apply(load())), indent=2, ensure_ascii=False) + "\n"
        if len(text.encode()) > _FILE_BYTES_MAX:
            raise Failure(f"{path} would have more than {_FILE_BYTES_MAX} bytes; delete profiles that are not used")
        _replace(target, text.encode())


def _replace(path: Path, data: bytes) -> None:
    import tempfile

    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # with mode 0600
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _unusable(path: Path, reason: str) -> Failure:
    return Failure(f"{path} cannot be used: {shown(reason)}; correct it, or move it away and set the profiles again")


def _parse(data: Any) -> Profiles:
    """Return the profiles that JSON describes. Raise ValueError."""
    if not isinstance(data, dict) or data.get("version") != _VERSION or not isinstance(data.get("profiles"), dict):
        raise ValueError(f"it is not a file of profiles of version {_VERSION}")
    current = data.get("current")
    if current is not None and not isinstance(current, str):
        raise ValueError("current is not a name")
    by_name = {check_name(name): _parse_profile(name, value) for name, value in data["profiles"].items()}
    return Profiles(by_name=by_name, current=current)


def _parse_profile(name: str, value: Any) -> Profile:
    if not isinstance(value, dict):
        raise ValueError(f"profile {name} is not an object")
    if unknown := sorted(set(value) - set(FIELDS.values())):
        raise ValueError(f"profile {name} has the unknown field {unknown[0]}")
    found = {}
    for attribute, title in FIELDS.items():
        if (given := value.get(title)) is None:
            continue
        texts = list(given.values()) if attribute.endswith("properties") and isinstance(given, dict) else [given]
        if not all(isinstance(text, str) for text in texts) or attribute.endswith("properties") > isinstance(
            given, dict
        ):
            raise ValueError(f"{title} of profile {name} has a value of the wrong type")
        found[attribute] = given
    return Profile(**found)


def _as_json(profiles: Profiles) -> dict[str, Any]:
    by_name = {name: fields_of(profile) for name, profile in sorted(profiles.by_name.items())}
    return {"version": _VERSION, "current": profiles.current, "profiles": by_name}


def fields_of(profile: Profile) -> dict[str, Any]:
    """Return what is set in a profile, with the names of the file."""
    values = {title: getattr(profile, attribute) for attribute, title in FIELDS.items()}
    return {title: dict(value) if isinstance(value, Mapping) else value for title, value in values.items() if value}


def without(profile: Profile, name: str) -> Profile:
    """Return a profile without this field or property. Raise NotFound if it has neither."""
    for attribute, title in FIELDS.items():
        value = getattr(profile, attribute)
        if name == title and value:
            return _with(profile, attribute, {} if isinstance(value, Mapping) else None)
        if isinstance(value, Mapping) and name in value:
            return _with(profile, attribute, {key: text for key, text in value.items() if key != name})
    raise NotFound(f"the profile has no {shown(name)}; 'ottla profile show' prints what it has")


def _with(profile: Profile, attribute: str, value: Any) -> Profile:
    return replace(profile, **{attribute: value})
