"""Copy versions to another registry: blocking requests, for a thread.

A version is registered with its id and its number, which the destination allows in mode IMPORT only. The exporter sets
this mode: for its own context, or in the default context for each subject. The destination refuses that if there are
schemas already, so that an exporter cannot change subjects that belong to others.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from ottla.client.errors import ClientError, PropertyRefused
from ottla.client.registry import RegistryError, SchemaRegistry
from ottla.edge.registry.exporters.definition import Exporter, Task
from ottla.edge.registry.records import Json, SchemaVersion
from ottla.edge.registry.subjects import Subject
from ottla.model.registry_secrets import SECRETS, URL
from ottla.security.secret_box import is_sealed

_TIMEOUT_S: Final = 10.0
_FILE_BYTES_MAX: Final = 1 << 20
#: below the time after which another instance becomes the leader
_TURN_S: Final = 3.0
#: properties that end with this name files
_LOCATION: Final = ".location"
_NOT_FOUND: Final = frozenset({40401, 40402})
_REFERENCED: Final = 42206


class Conflict(ClientError):
    """The destination has another schema in the place of one that is to be copied, or is not a registry."""


def connect(exporter: Exporter, files_directory: str = "") -> SchemaRegistry:
    """Return a client of the destination; no connection is opened yet. Raise PropertyRefused for a wrong property.

    Properties can name files below ``files_directory`` only, and none if it is empty.
    """
    properties = {name: value for name, value in exporter.config.items() if name != URL}
    if any(is_sealed(properties[name]) for name in SECRETS & properties.keys()):
        raise PropertyRefused(
            "a secret of the exporter is encrypted; set password.encoder.secret to the text that it was encrypted "
            "with, or give the secret again"
        )
    for name in [name for name in properties if name.endswith(_LOCATION)]:
        properties[name] = _allowed_file(name, properties[name], files_directory)
    return SchemaRegistry(exporter.config[URL], properties, timeout_s=_TIMEOUT_S)


def _allowed_file(name: str, path: str, directory: str) -> str:
    """Return the path of a small file below ``directory``. Raise PropertyRefused.

    A user chooses the path. Otherwise a user could make the registry use a key of the operator, or learn from the error
    which files exist: for a path outside of the directory, the error is the same for all files.
    """
    refused = PropertyRefused(
        f"{name}: files must be below the directory of the registry's setting exporter.files.directory"
        f"{'' if directory else ', which is not set'}; give the certificates as text instead, with ssl.ca.pem, "
        "ssl.certificate.pem and ssl.key.pem"
    )
    if not directory or "\0" in path:
        raise refused
    # First compare the texts, so that no file outside of the directory is opened. Then check where links lead.
    wanted = os.path.normpath(os.path.join(directory, path))
    if not _is_below(wanted, os.path.normpath(directory)):
        raise refused
    root, found = os.path.realpath(directory), os.path.realpath(wanted)
    if not _is_below(found, root):
        raise refused
    # To read a named pipe would stop this process.
    if not _is_small_file(found):
        raise PropertyRefused(f"{name}: the registry's machine has no file of up to 1 MiB with this path")
    return found


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip(os.sep) + os.sep)


def _is_small_file(path: str) -> bool:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= _FILE_BYTES_MAX


class Destination:
    """The registry that one exporter copies to. Used by one thread at a time."""

    def __init__(
        self,
        exporter: Exporter,
        client: SchemaRegistry | None = None,
        now: Callable[[], float] = time.monotonic,
        *,
        files_directory: str = "",
    ) -> None:
        self._now = now
        self._exporter = exporter
        self._client = client or connect(exporter, files_directory)
        #: subjects of the destination that are known to be in mode IMPORT
        self._importing: set[str] = set()
        #: versions that others refer to and that are known to be copied
        self._references: set[tuple[str, int]] = set()
        self.is_stopped = threading.Event()

    def check(self) -> None:
        """Raise ClientError if the destination does not answer, or does not accept the login."""
        self._ask("GET", "/mode")

    def close(self) -> None:
        self._client.close()

    def copy(self, tasks: Sequence[Task], done: Callable[[Task, bool], None]) -> list[Task]:
        """Do the tasks in order, for a few seconds. `done` gets each, and whether the destination was changed.

        A version that another one at the destination still refers to cannot be deleted. It is tried again after all
        other tasks, and returned if it is still in use. Raise ClientError if a task fails; those before it are done.

        Call it again with the tasks that were neither done nor returned, after another proof that this instance is the
        leader. A process that was paused while another leader took over must not go on with what it has decided before.
        """
        deadline = self._now() + _TURN_S
        in_use = self._try(tasks, done, deadline)
        # The last one first, because a later version may refer to an earlier one.
        return self._try(in_use[::-1], done, deadline)[::-1]

    def _try(self, tasks: Sequence[Task], done: Callable[[Task, bool], None], deadline: float) -> list[Task]:
        in_use = []
        for task in tasks:
            if self.is_stopped.is_set() or self._now() > deadline:
                break
            try:
                done(task, self._do(task))
            except RegistryError as error:
                if error.code != _REFERENCED:
                    raise
                in_use.append(task)
        return in_use

    def _do(self, task: Task) -> bool:
        if task.row is None:
            return self._remove(self._exporter.destination(task.subject), task.version)
        for row in task.references:
            if (row.subject, row.version) not in self._references:
                # Also if it is deleted at the source: its own task deletes it, after those that refer to it.
                self._register(row)
                self._references.add((row.subject, row.version))
        is_changed, is_deleted = self._register(task.row)
        if is_deleted == task.row.is_deleted:
            return is_changed
        if task.row.is_deleted:
            self._delete(self._exporter.destination(task.subject), task.version)
        else:
            self._post(task.row)
        return True

    def _register(self, row: SchemaVersion) -> tuple[bool, bool]:
        """Register a version that the destination does not have. Return whether it was changed, and is deleted."""
        subject = self._exporter.destination(row.subject)
        found = self._find(subject, row.version)
        if found is not None and found.get("id") != row.id:
            # The numbers of a subject start again after it was deleted permanently.
            if not self._remove(subject, row.version):
                raise Conflict(
                    f"version {row.version} of subject '{subject}' has id {found.get('id')} at the destination, not "
                    f"{row.id}: delete it there, or copy to another context"
                )
            found = None
        if found is not None and found.get("schema") == row.text:
            return False, bool(found.get("deleted"))
        self._post(row)
        return True, False

    def _post(self, row: SchemaVersion) -> None:
        subject = self._exporter.destination(row.subject)
        self._set_import_mode(subject)
        self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", self._exporter.registration(row))

    def _remove(self, subject: str, version: int) -> bool:
        """Delete a version permanently, if the subject belongs to an exporter. Return whether it existed."""
        found = self._find(subject, version)
        if found is None or self._mode(subject) != "IMPORT":
            return False
        if not found.get("deleted"):
            self._delete(subject, version)
        self._delete(subject, version, "?permanent=true")
        # With its last version, a subject loses its mode.
        self._importing.discard(subject)
        self._references.clear()
        return True

    def _find(self, subject: str, version: int) -> Json | None:
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
        try:
            found = self._ask("GET", path)
        except RegistryError as error:
            if error.code in _NOT_FOUND:
                return None
            raise
        # A registry looks for a subject of the default context in other contexts too.
        return found if found.get("subject") == subject else None

    def _delete(self, subject: str, version: int, query: str = "") -> None:
        self._client.ask("DELETE", f"/subjects/{quote(subject, safe='')}/versions/{version}{query}")

    def _mode(self, subject: str) -> Any:
        return self._ask("GET", f"/mode/{quote(subject, safe='')}?defaultToGlobal=true").get("mode")

    def _set_import_mode(self, subject: str) -> None:
        if subject in self._importing:
            return
        if self._mode(subject) != "IMPORT":
            place = Subject.parse(subject).prefix or subject
            self._ask("PUT", f"/mode/{quote(place, safe='')}", {"mode": "IMPORT"})
        self._importing.add(subject)

    def _ask(self, method: str, path: str, body: Json | None = None) -> Json:
        answer = self._client.ask(method, path, body)
        if not isinstance(answer, dict):
            raise Conflict(f"{self._client!r} is not a schema registry: it answers {method} {path} with no JSON object")
        return answer
