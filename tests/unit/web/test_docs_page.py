"""The script of the page `/docs`, run by Node with a small document object."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
from test_openapi import API, OPERATIONS

from ottla.edge.web.openapi import describe

NODE = shutil.which("node")


@pytest.mark.foreign
@pytest.mark.skipif(NODE is None, reason="Node is not installed; the script of /docs is not run")
def test_page_lists_operations_sends_requests_and_shows_answers() -> None:
    script = str(files("ottla.edge.web") / "docs_page" / "page.js")
    checks = str(Path(__file__).with_name("docs_page_checks.js"))
    text = json.dumps(describe(OPERATIONS, API))
    done = subprocess.run([NODE or "", checks, script], input=text, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("ok\n", "")
