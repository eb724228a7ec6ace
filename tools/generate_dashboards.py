"""Write the dashboards of deploy/grafana from the definitions of dashboards.py.

python tools/generate_dashboards.py            write the files
python tools/generate_dashboards.py --check    fail if a file is not what the definitions say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dashboards import DASHBOARDS, Dashboard, Panel, Variable

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana"

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_GREEN, _YELLOW, _RED = "green", "yellow", "red"


def render(dashboard: Dashboard) -> str:
    """Return the file that Grafana imports."""
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["ottla", "kafka"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [
            {"type": "dashboards", "tags": ["ottla"], "title": "Ottla", "asDropdown": True, "includeVars": False}
        ],
        "templating": {"list": [_data_source(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": []},
        "panels": list(_panels(dashboard.rows)),
    }
    return json.dumps(document, indent=1) + "\n"


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({variable.metric}, {variable.label})", "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(rows: Iterable[tuple[str, Sequence[Panel]]]) -> Iterable[dict[str, Any]]:
    """Yield the panels from left to right, and the rows from top to bottom."""
    number, top = 1, 0
    for title, panels in rows:
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _place(0, top, 24, 1),
        }
        number, top, left, height = number + 1, top + 1, 0, 0
        for panel in panels:
            own_height = 4 if panel.kind == "stat" else 8
            # Panels of another height begin a new line.
            if left + panel.width > _COLUMNS or (left and own_height != height):
                left, top = 0, top + height
            height = own_height
            yield _panel(panel, number, _place(left, top, panel.width, height))
            number, left = number + 1, left + panel.width
        top += height


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": _GREEN, "value": None}]
    steps += [
        {"color": color, "value": value}
        for color, value in zip((_YELLOW, _RED), panel.thresholds, strict=True)
        if value is not None
    ]
    is_stat = panel.kind == "stat"
    options: dict[str, Any] = (
        {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
        if is_stat
        else {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    )
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "color": {"mode": "thresholds" if is_stat else "palette-classic"},
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    code = 0
    for dashboard in DASHBOARDS:
        file = FOLDER / f"{dashboard.uid.removeprefix('ottla-')}.json"
        text = render(dashboard)
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        if arguments:
            print(f"{file.name} is out of date; run python tools/generate_dashboards.py", file=sys.stderr)
            code = 1
        else:
            FOLDER.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file.name}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
