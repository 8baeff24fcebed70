"""Every package stays within its budget of lines."""

from pathlib import Path

from test_architecture import ROWS

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {
    "apps/datasets": 1830,
    "apps/evaluation": 1040,
    "apps/server": 1670,
    "apps/studio": 1630,
    "audio": 879,
    "bundled": 10,
    "cli": 1144,
    "config": 1370,
    "data": 3060,
    "devices": 1052,
    "distributed": 470,
    "hearing": 760,
    "inference": 1880,
    "interchange": 2920,
    "memory": 574,
    "models": 1940,
    "runs": 2312,
    "storage": 1161,
    "tests": 24700,
    "text": 1580,
    "training": 4280,
    "utilities": 5450,
    "utils": 100,
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
