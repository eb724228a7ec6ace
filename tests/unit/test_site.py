"""The web site of docs/: `make site` builds it, and fails for a link that leads nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_site_builds_without_warnings_and_has_the_files_that_pages_link_to(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is missing: pip install -e '.[dev]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert (tmp_path / "ARCHITECTURE.html").is_file()
    assert (tmp_path / "examples" / "operators" / "filter.yaml").is_file()
