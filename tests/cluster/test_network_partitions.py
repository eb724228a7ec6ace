"""The campaign `partitions` without namespaces: which cases it has, and what it says where it cannot run."""

from __future__ import annotations

import os
import shutil

import pytest
from network_namespaces import check_requirements
from network_partitions import Roles, run, select

from campaign.report import CannotRun, Report


def test_every_pair_of_roles_is_cut_in_both_directions() -> None:
    one_way = [case.name for case in select(["P7"])]
    assert len(set(one_way)) == 12
    assert {"P7-leader-ZooKeeper", "P7-ZooKeeper-leader"} <= set(one_way)


def test_case_is_selected_by_its_name() -> None:
    assert [case.name for case in select(["P1"])] == ["P1"]
    assert [case.name for case in select(["P4", "P8"])] == ["P4", "P4-controller", "P8"]
    with pytest.raises(CannotRun, match="no such case"):
        select(["P99"])


def test_roles_are_different_hosts() -> None:
    hosts = Roles(partition=1, leader=2, follower=3, other=1, controller=1).hosts
    assert len(set(hosts.values())) == 4
    assert hosts["controller"] == hosts["other"]


def test_user_who_is_not_root_learns_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotRun, match="need root"):
        run(Report(), case="P1", logs="")


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "nft" else f"/sbin/{name}")
    with pytest.raises(CannotRun, match="apt-get install nftables"):
        check_requirements()
