"""`ottla doctor` on a live cluster: a few of the faults of `make campaign NAME=doctor`."""

from __future__ import annotations

import doctor_client_faults  # noqa: F401 (it adds its faults)
import pytest
from doctor_faults import FAULTS
from doctor_place import Place

from campaign.processes import wait_until
from ottla.testing import ClusterProcess

pytestmark = [pytest.mark.broker, pytest.mark.client]


@pytest.mark.parametrize("check", ["single-replica", "min-isr-one", "lost-records"])
def test_fault_is_named_and_gone_after_its_repair(ottla_cluster: ClusterProcess, check: str) -> None:
    place = Place(ottla_cluster, login={})
    (fault,) = [each for each in FAULTS if each.check == check]

    def own() -> list[str]:
        """Return the objects of this test: others use the same cluster."""
        found = place.findings().get(check)
        names = found["names"] if found is not None else []
        assert found is None or found["remedy"]
        return [name for name in names if name.startswith(("doctor-", "group-"))]

    with fault.make(place):
        wait_until(lambda: bool(own()), "the fault is named")
    wait_until(lambda: not own(), "the fault is gone")
