"""The house: which room may import which, what is pure, what stays light, how large things grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("schemas", "streams", "analysis", "environments", "trainer", "synthesizer", "commands")
DOORS = {
    "schemas": set(),
    "streams": {"schemas"},
    "analysis": {"schemas", "streams"},
    "environments": {"schemas"},
    "trainer": {"schemas", "streams", "environments"},
    "synthesizer": {"schemas", "streams", "environments"},
    "commands": {"schemas", "streams", "analysis", "environments", "trainer", "synthesizer"},
}
BACK_DOORS = {"trainer/replay": {"analysis"}}
# Within a room each folder may import those before it.
FLOORS = (
    ("streams.log", "streams.archive", "streams.pool"),
    ("environments.parsing", "environments.scoring", "environments.bfcl"),
)
KEPT_BY = {
    "faust": {"streams/pool/worker.py", "streams/log/embedded_broker.py"},
    "mode": {"streams/pool/worker.py"},
    "deepspeed": {"trainer"},
    "torch": {"trainer", "commands/roles/train.py"},
    "transformers": {"trainer", "commands/roles/train.py"},
    "vllm": {"trainer", "synthesizer"},
    "pyarrow": {"analysis/columns.py", "analysis/sql_views.py"},
    "duckdb": {"analysis/sql_views.py", "commands/sql.py"},
    "confluent_kafka": {"streams", "schemas/registry.py"},
    "aiokafka": {"streams"},
    "bfcl_eval": {"environments"},
}
PURE = (
    "schemas/catalogue.py",
    "schemas/identity.py",
    "streams/pool/boundary.py",
    "analysis/conservation.py",
    "streams/pool/decide.py",
    "streams/pool/lifecycle.py",
    "streams/pool/pool.py",
    "streams/pool/settings.py",
    "streams/pool/rows.py",
    "analysis/summary.py",
    "analysis/checkup.py",
    "analysis/index.py",
    "analysis/event_values.py",
    "analysis/explain.py",
    "analysis/fork.py",
    "analysis/lineage.py",
    "analysis/measures.py",
    "analysis/replay.py",
    "analysis/rescore.py",
    "analysis/series.py",
    "analysis/watchdog.py",
    "analysis/charts.py",
    "analysis/lineage_chart.py",
    "synthesizer/book.py",
    "synthesizer/llm/answers.py",
    "synthesizer/llm/transcript.py",
    "synthesizer/stages/patches.py",
    "analysis/yields.py",
    "trainer/update/advantage.py",
    "trainer/curriculum.py",
    "trainer/rollouts/dispatch.py",
    "trainer/update/loss.py",
    "trainer/measures.py",
    "trainer/update/minibatches.py",
    "trainer/update/ranks.py",
    "trainer/update/schedule.py",
    "trainer/rollouts/staleness.py",
)
IMPURE = {
    "asyncio",
    "confluent_kafka",
    "datetime",
    "faust",
    "io",
    "logging",
    "os",
    "pathlib",
    "random",
    "requests",
    "secrets",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
BANNED_NAMES = {"utils", "common", "helpers", "misc", "manager", "base"}
BROAD = {"streams/log/reader.py", "environments/execution.py", "commands/roles/synthesizer.py", "cli.py"}
GENERATED = {"schemas/events.py"}
MAX_FUNCTION_LINES, MAX_MODULE_LINES, MAX_AGENT_LINES, MAX_LOOP_LINES = 60, 600, 12, 200
MAX_FILES_IN_A_FOLDER = 26


def modules() -> Iterator[tuple[str, ast.Module, str]]:
    """(path, syntax tree, text) of every module of ours outside tests."""
    paths = [p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))] + [ROOT / "cli.py"]
    for path in paths:
        text = path.read_text()
        yield str(path.relative_to(ROOT)), ast.parse(text), text


def imported(tree: ast.Module) -> set[str]:
    """Top-level names a module imports, wherever in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_arrows_point_one_way() -> None:
    for path, tree, _ in modules():
        room = path.partition("/")[0]
        if room in DOORS:
            foreign = imported(tree) & set(ROOMS) - {room} - DOORS[room] - BACK_DOORS.get(str(Path(path).parent), set())
            assert not foreign, f"{path} may not import {foreign}"


def references(tree: ast.Module, known: Collection[str]) -> set[str]:
    """Those of our modules that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & set(known) or {node.module}
    return found & set(known)


def imports() -> dict[str, set[str]]:
    """Module name -> our modules that it imports."""
    trees = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): tree for path, tree, _ in modules()}
    return {name: references(tree, trees) - {name} for name, tree in trees.items()}


def test_no_module_imports_itself_through_others() -> None:
    left = imports()
    while free := {name for name, known in left.items() if not known & left.keys()}:
        left = {name: known for name, known in left.items() if name not in free}
    while roots := left.keys() - set().union(*left.values()):
        left = {name: known for name, known in left.items() if name not in roots}
    assert not left, f"circles among {sorted(left)}"


def test_floors_are_climbed_one_way() -> None:
    for name, known in imports().items():
        for floors in FLOORS:
            above = {
                floor for at, floor in enumerate(floors) for lower in floors[:at] if f"{name}.".startswith(f"{lower}.")
            }
            higher = {other for other in known for floor in above if f"{other}.".startswith(f"{floor}.")}
            assert not higher, f"{name} may not import {higher}"


def test_no_folder_holds_more_files_than_a_reader_can() -> None:
    count = Counter(str(Path(path).parent) for path, _, _ in modules())
    assert not {folder: number for folder, number in count.items() if number > MAX_FILES_IN_A_FOLDER}


def test_heavy_packages_stay_in_their_rooms() -> None:
    for path, tree, _ in modules():
        for package in imported(tree) & KEPT_BY.keys():
            allowed = KEPT_BY[package]
            assert path in allowed or path.partition("/")[0] in allowed, f"{path} may not import {package}"


def test_pure_modules_know_no_clock_no_chance_and_no_outside_world() -> None:
    found = {path: tree for path, tree, _ in modules() if path in PURE}
    assert set(found) == set(PURE)
    for path, tree in found.items():
        assert not imported(tree) & IMPURE, f"{path} imports {imported(tree) & IMPURE}"
        calls = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & {"open", "print", "input"}, path


def test_nothing_is_evaluated_as_code() -> None:
    for path, tree, _ in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile", "__import__"}, f"{path}:{node.lineno}"


def test_broad_excepts_live_at_the_dead_letter_boundary_and_the_top_of_the_command_line() -> None:
    for path, tree, _ in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                names = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"everything"}
                broad = names & {"Exception", "BaseException", "everything"}
                assert not broad or path in BROAD, f"{path}:{node.lineno} catches {broad}"


def test_rooms_stay_liveable() -> None:
    for path, tree, text in modules():
        if path in GENERATED:
            continue
        assert len(text.splitlines()) <= MAX_MODULE_LINES, path
        assert ast.get_docstring(tree), f"{path} says nothing of itself"
        assert Path(path).stem not in BANNED_NAMES, path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                inner = [
                    n for n in ast.walk(node) if n is not node and isinstance(n, ast.AsyncFunctionDef | ast.FunctionDef)
                ]
                limit = MAX_FUNCTION_LINES + sum(n.end_lineno - n.lineno + 3 for n in inner)
                assert lines <= limit, f"{path}:{node.lineno} {node.name} has {lines} lines"


def test_faust_agents_are_a_dozen_lines_and_the_trainers_loop_fits_on_its_page() -> None:
    trees = {path: (tree, text) for path, tree, text in modules()}
    agents = [
        n
        for n in ast.walk(trees["streams/pool/worker.py"][0])
        if isinstance(n, ast.AsyncFunctionDef) and n.name.startswith("fold_") and n.decorator_list
    ]
    assert len(agents) == 5
    assert all(n.end_lineno - n.lineno + 1 <= MAX_AGENT_LINES for n in agents)
    assert len(trees["trainer/loop.py"][1].splitlines()) <= MAX_LOOP_LINES


@pytest.mark.parametrize(
    "room",
    ["schemas", "streams.log", "streams.pool.decide", "streams.log.kafka", "environments", "synthesizer.service"],
)
def test_light_rooms_load_no_torch(room: str) -> None:
    code = f"import sys, {room}; heavy = {{'torch', 'transformers', 'vllm', 'deepspeed'}} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def loaded_by(*arguments: str) -> set[str]:
    """Modules that a command line has imported when it ends."""
    code = (
        "import sys, cli\n"
        f"sys.argv = ['rods', *{arguments!r}]\n"
        "try:\n    cli.main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_the_command_line_lists_its_commands_without_loading_one() -> None:
    assert {name for name in loaded_by("--help") if name.partition(".")[0] in ROOMS} == set()


@pytest.mark.parametrize("command", ["run", "status", "worker", "archiver", "synthesizer", "rescore", "fork", "eval"])
def test_a_command_loads_neither_torch_nor_faust_before_it_needs_them(command: str) -> None:
    assert not loaded_by(command, "--help") & {"torch", "faust", "transformers"}


def test_the_project_speaks_of_itself_alone() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *(ROOT / room for room in ROOMS)]:
        files = path.rglob("*.py") if path.is_dir() else [path]
        for file in files:
            assert "../shared" not in file.read_text() and "/work/" not in file.read_text(), file
