"""The commands of docs/guides/rest.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rest_process import RestClient

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "rest.md"

pytestmark = [
    pytest.mark.broker,
    pytest.mark.foreign,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


def test_commands_of_the_page_produce_and_copy_records(rest: RestClient) -> None:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    install, start, *blocks = [text for language, text in fenced if language == "sh"]
    assert "pip install" in install and start.startswith("ottla up ")
    script = "".join(blocks).replace("URL=http://127.0.0.1:8082", f"URL={rest.url}")
    # The stream that waits for new records ends by itself here.
    script = script.replace("follow=true", "follow=true&limit=1").replace("| python3 ", f"| {sys.executable} ")
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in re.findall(r"^\{.*\}$", done.stdout.replace("}{", "}\n{"), re.MULTILINE)]
    read = [line["value"]["data"] for line in lines if "data" in (line.get("value") or {})]
    assert read == [{"id": 1}] * 3
    assert [
        json.loads(line)["value"]["data"] for line in rest.get("topics/readings-copy/records").text.splitlines()
    ] == [{"id": 1}]
