"""kafka-features: the levels of features, such as metadata.version and group.version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.cli.kafka import releases
from ottla.cli.kafka.arguments import Argument, Given, Syntax, argument
from ottla.cli.kafka.arguments import main as run_main
from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import ToolError, default_text
from ottla.cli.kafka.tool import print_line
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

_DRY_RUN = argument("--dry-run", help="Check the change, and do not make it.")
_UNSAFE = argument("--unsafe", help="Make the change even if metadata is lost.")
_RELEASE = argument("--release-version", metavar="VERSION", help="Set all features to the levels of this release.")
_METADATA = argument("--metadata", metavar="VERSION", help="The former way to name a level of metadata.version.")
#: what UpdateFeatures calls the three kinds of changes
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


def _feature(help: str, *, is_required: bool = False) -> Argument:
    return argument("--feature", metavar="FEATURE", is_repeatable=True, is_required=is_required, help=help)


_LEVEL = _feature("A feature and its new level, as group.version=1. Repeatable.")
SYNTAX: Final = Syntax(
    name="kafka-features",
    summary="Print and change the levels of features.",
    arguments=(
        argument("--bootstrap-server", metavar="HOST:PORT,...", help="Brokers of the cluster."),
        argument("--bootstrap-controller", metavar="HOST:PORT,...", help="Controllers of a KRaft cluster."),
        argument("--command-config", metavar="FILE", help="Properties of the client."),
    ),
    exclusive=(("bootstrap-server", "bootstrap-controller"),),
    commands=(
        Syntax(name="kafka-features describe", summary="Print the features of the cluster."),
        Syntax(
            name="kafka-features upgrade",
            summary="Raise levels.",
            arguments=(_METADATA, _RELEASE, _LEVEL, _DRY_RUN),
        ),
        Syntax(
            name="kafka-features downgrade",
            summary="Lower levels.",
            arguments=(_METADATA, _RELEASE, _LEVEL, _UNSAFE, _DRY_RUN),
        ),
        Syntax(
            name="kafka-features disable",
            summary="Lower features to level 0.",
            arguments=(_feature("A feature. Repeatable."), _UNSAFE, _DRY_RUN),
        ),
        Syntax(
            name="kafka-features version-mapping",
            summary="Print the levels of features in a release; needs no cluster.",
            arguments=(
                argument("--release-version", metavar="VERSION", help="The release.  [default: the latest one]"),
            ),
        ),
        Syntax(
            name="kafka-features feature-dependencies",
            summary="Print which other levels a level needs; needs no cluster.",
            arguments=(_feature("A feature and its level, as group.version=1. Repeatable.", is_required=True),),
        ),
    ),
)


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return run_main(SYNTAX, words, _run, help_code=0)


def _run(given: Given) -> None:
    if given.command == "version-mapping":
        print_mapping(given["release-version"])
        return
    if given.command == "feature-dependencies":
        print_dependencies(given["feature"])
        return
    properties = properties_of(given["command-config"])
    if given.has("bootstrap-controller"):
        raise ToolError("Ottla has no separate controllers: name brokers with --bootstrap-server")
    if not given.has("bootstrap-server"):
        raise ToolError(
            "Command line error: You must specify either --bootstrap-controller or --bootstrap-server.. Type --help "
            "for help."
        )
    with connect(given["bootstrap-server"], properties, call="describeFeatures") as admin:
        if given.command == "describe":
            _describe(admin)
            return
        kind = _UPGRADE
        if given.command != "upgrade":
            kind = _UNSAFE_DOWNGRADE if given.has("unsafe") else _SAFE_DOWNGRADE
        _update(admin, given.command, _levels(given, kind), kind, is_dry_run=given.has("dry-run"))


def print_mapping(version: str | None) -> None:
    """Print the levels of features in a release. Raise ToolError if it is unknown."""
    try:
        lines = releases.mapping(version or releases.LATEST)
    except ValueError:
        raise _unknown_version(str(version), "are:") from None
    for line in lines:
        print_line(line)


def print_dependencies(features: Sequence[str]) -> None:
    """Print what levels need. Raise ToolError if a level is unknown."""
    try:
        for text in features:
            for line in releases.dependencies(*releases.parse_level(text)):
                print_line(line)
    except ValueError as error:
        raise ToolError(str(error)) from None


def _unknown_version(version: str, verb: str) -> ToolError:
    return ToolError(
        f"Unknown {releases.METADATA} '{version}'. Supported {releases.METADATA} {verb} {', '.join(releases.VERSIONS)}"
    )


def _describe(admin: Admin) -> None:
    answer = admin.ask_any(ApiVersionsRequest(client_software_name="ottla", client_software_version="1"), 3)
    finalized = {row.name: row.max_version_level for row in answer.finalized_features}
    epoch = "-" if answer.finalized_features_epoch < 0 else str(answer.finalized_features_epoch)
    for row in sorted(answer.supported_features, key=lambda each: each.name):
        low, high, level = (
            releases.shown_level(row.name, number)
            for number in (row.min_version, row.max_version, finalized.get(row.name, 0))
        )
        print_line(
            f"Feature: {row.name:<42}SupportedMinVersion: {low:<17}SupportedMaxVersion: {high:<17}"
            f"FinalizedVersionLevel: {level:<17}Epoch: {epoch}"
        )


def _levels(given: Given, kind: int) -> dict[str, int]:
    """Return the new level of each feature."""
    if given.command == "disable":
        return _distinct([(name, 0) for name in given["feature"]])
    release, metadata = given["release-version"], given["metadata"]
    if release is not None and (metadata is not None or given.has("feature")):
        raise ToolError("Can not specify `release-version` with other feature flags.")
    levels: dict[str, int] = {}
    try:
        if release is not None:
            others = releases.levels_at(release)
            # A request to upgrade a feature to level 0 would be refused.
            kept = {name: level for name, level in others.items() if kind != _UPGRADE or level > 0}
            return {releases.METADATA: releases.level_of(release), **kept}
        if metadata is not None:
            print_line(" `metadata` flag is deprecated and may be removed in a future release.")
            levels[releases.METADATA] = releases.level_of(metadata)
    except ValueError as error:
        raise _unknown_version(str(error), "are") from None
    try:
        pairs = [releases.parse_level(text) for text in given["feature"]]
    except ValueError as error:
        raise ToolError(str(error)) from None
    return _distinct([*levels.items(), *pairs])


def _distinct(pairs: Sequence[tuple[str, int]]) -> dict[str, int]:
    levels: dict[str, int] = {}
    for name, level in pairs:
        if name in levels:
            raise ToolError(f"Feature {name} was specified more than once.")
        levels[name] = level
    return levels


def _update(admin: Admin, verb: str, levels: Mapping[str, int], kind: int, *, is_dry_run: bool) -> None:
    if not levels:
        raise ToolError(f"You must specify at least one feature to {verb}")
    updates = [
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=kind != _UPGRADE)
        for name, level in levels.items()
    ]
    answer = admin.ask_any(UpdateFeaturesRequest(feature_updates=updates, validate_only=is_dry_run), 1)
    # Newer brokers answer for all features together.
    reasons = {row.feature: (row.error_code, row.error_message) for row in answer.results}
    common = (answer.error_code, answer.error_message)
    failed = 0
    for name in sorted(levels):
        code, text = common if answer.error_code else reasons.get(name, (0, None))
        done = "disabled" if verb == "disable" else f"{verb}d to {levels[name]}"
        if code:
            failed += 1
            what = f"disable {name}" if verb == "disable" else f"{verb} {name} to {levels[name]}"
            print_line(f"{'Can not' if is_dry_run else 'Could not'} {what}. {text or default_text(code)}")
        else:
            print_line(f"{name} {'can be' if is_dry_run else 'was'} {done}.")
    if failed:
        raise ToolError(f"{failed} out of {len(levels)} operation(s) failed.")
