"""docs/environments.md is true: its code runs, and every deliberate difference it names has a test."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from environments import registry
from environments.parsing import BUILT_IN
from environments.scoring.official import OfficialSettings

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "environments.md").read_text()


def test_the_environment_in_the_document_runs_and_earns_its_reward(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(code.splitlines()) <= 64
    script = tmp_path / "greenhouse.py"
    script.write_text(code)
    names = runpy.run_path(str(script))
    assert names["episode"].done and names["episode"].reward == 1.0
    assert list(names["GREENHOUSE"].tools(names["TASK"])) == ["moisture", "water"]


def test_every_deliberate_difference_has_a_test_by_its_name():
    table = TEXT.split("Where this deliberately differs")[1].split("Kept as it is")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    tests = (Path(__file__).parent / "test_official.py").read_text()
    assert named == set(re.findall(r"def test_exception_(\w+?)_(?:a|an|error)_", tests))


def test_every_name_a_user_can_choose_is_in_the_document():
    for name in (*registry.BUILT_IN, *BUILT_IN):
        assert f"`{name}`" in TEXT
    for setting in OfficialSettings.__dataclass_fields__.keys() - {"max_steps"}:
        assert setting in TEXT
