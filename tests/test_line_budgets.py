"""Every package stays within its budget of lines."""

from pathlib import Path

from test_architecture import ROWS

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {
    "apps/datasets": 1790,
    "apps/evaluation": 1020,
    "apps/server": 1600,
    "apps/studio": 1735,
    "audio": 845,
    "bundled": 10,
    "cli": 1095,
    "config": 1350,
    "data": 3085,
    "devices": 1030,
    "distributed": 455,
    "hearing": 730,
    "inference": 1925,
    "interchange": 2855,
    "memory": 580,
    "models": 1940,
    "runs": 2335,
    "storage": 1215,
    "tests": 24900,
    "text": 1655,
    "training": 4295,
    "utilities": 5500,
    "utils": 120,
}
"""Maximum lines of Python per package. A commit that raises one must say why."""


def lines_of_rooms(root):
    """Lines of Python in each room, each app, the utilities and the tests."""
    rooms = {name: root / "myxtts" / name for name in ROWS if (root / "myxtts" / name).is_dir() and name != "apps"}
    rooms |= {f"apps/{init.parent.name}": init.parent for init in root.glob("myxtts/apps/*/__init__.py")}
    rooms |= {name: root / name for name in ("utilities", "tests")}
    return {
        name: sum(len(file.read_text("utf-8").splitlines()) for file in room.rglob("*.py"))
        for name, room in rooms.items()
    }


def test_every_room_keeps_its_budget_of_lines():
    lines = lines_of_rooms(ROOT)
    assert set(lines) == set(BUDGETS)
    assert {name: count for name, count in lines.items() if count > BUDGETS[name]} == {}
