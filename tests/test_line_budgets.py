"""Every package stays within its budget of lines."""

from pathlib import Path

from test_architecture import ROWS

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {
    "apps/datasets": 1706,
    "apps/evaluation": 987,
    "apps/server": 1621,
    "apps/studio": 1789,
    "audio": 904,
    "bundled": 5,
    "cli": 1050,
    "config": 1398,
    "data": 3220,
    "devices": 1014,
    "distributed": 451,
    "hearing": 730,
    "inference": 1964,
    "interchange": 2745,
    "memory": 583,
    "models": 1802,
    "runs": 2474,
    "storage": 1278,
    "tests": 25000,
    "text": 1679,
    "training": 4084,
    "utilities": 5500,
    "utils": 125,
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
