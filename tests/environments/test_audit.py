"""The audit: what makes a task unfit is found, named and placed."""

from __future__ import annotations

from dataclasses import replace

from environments.audit import AuditReport, Finding, Kind, audit, audit_task
from environments.execution import make_call
from environments.registry import environment, load_tasks
from schemas.events import Turn

WORKSHOP, BFCL = environment("workshop"), environment()
CLEAN = load_tasks("train", "workshop")[0]


def kinds(task, world=WORKSHOP):
    return {(finding.kind, finding.turn) for finding in audit_task(world, task)}


def with_turn(task, index, **changes):
    turns = list(task.turns)
    turns[index] = replace(turns[index], **changes)
    return replace(task, turns=tuple(turns))


def test_a_clean_task_has_no_findings():
    assert audit(WORKSHOP, load_tasks("all", "workshop")).num_faulty_tasks == 0
    assert kinds(CLEAN) == set()


def test_a_failing_ground_truth_is_found():
    broken = with_turn(CLEAN, 1, ground_truth=(make_call("take_part", {"part": "anvil", "quantity": 2}),))
    assert (Kind.FAILING_CALL, 1) in kinds(broken)


def test_a_function_outside_the_tasks_classes_is_found():
    broken = with_turn(CLEAN, 0, ground_truth=(make_call("launch", {}),))
    assert (Kind.UNKNOWN_FUNCTION, 0) in kinds(broken)


def test_a_call_that_breaks_its_schema_is_found():
    broken = with_turn(CLEAN, 1, ground_truth=(make_call("take_part", {"part": "chain", "quantity": "two"}),))
    assert (Kind.SCHEMA_BROKEN, 1) in kinds(broken)


def test_a_withheld_function_used_too_early_or_never_restored_is_found():
    withheld = replace(CLEAN, withheld_functions=("take_part",))
    assert kinds(withheld) == {(Kind.WITHHELD_FUNCTION_USED, 1), (Kind.TURN_COUNT, -1)}


def test_a_text_that_nobody_said_is_a_fault_only_where_its_wording_is_scored():
    note = make_call("add_work", {"job_id": "J1", "note": "greased the squeaking bottom bracket", "minutes": 35})
    assert (Kind.UNDERIVABLE_TEXT, 2) not in kinds(with_turn(CLEAN, 2, ground_truth=(note,))), "the call itself fails"
    opening = make_call("open_job", {"customer": "Mira", "bicycle": "a rather rusty old tandem"})
    assert (Kind.UNDERIVABLE_TEXT, 0) in kinds(with_turn(CLEAN, 0, ground_truth=(opening,)))
    unscored = [
        finding
        for task in load_tasks("all")
        for finding in audit_task(BFCL, task)
        if finding.kind is Kind.UNSCORED_TEXT
    ]
    assert {finding.function for finding in unscored} == {"contact_customer_support", "authenticate_twitter"}


def test_an_empty_turn_that_the_category_does_not_imply_is_noted():
    extra = replace(CLEAN, turns=(*CLEAN.turns, Turn(user_text="Thanks!", ground_truth=())))
    assert (Kind.UNEXPECTED_EMPTY_TURN, 3) in kinds(extra)


def test_a_configuration_on_both_sides_of_the_split_is_found():
    held_out = frozenset(task.task_id for split in ("val", "test") for task in load_tasks(split))
    report = audit(BFCL, load_tasks("all"), held_out)
    crossing = {
        finding.task_id.rsplit("_", 1)[1] for finding in report.findings if finding.kind is Kind.CONFIG_CROSSES_SPLIT
    }
    assert crossing == {"70", "74"}
    assert (
        report.counts()["failing_call"] == report.counts()["unknown_function"] == report.counts()["schema_broken"] == 0
    )
    early = [(f.task_id, f.function) for f in report.findings if f.kind is Kind.WITHHELD_FUNCTION_USED]
    assert early == [("multi_turn_miss_func_49", "tail")]
    unused = {f.task_id for f in report.findings if f.kind is Kind.WITHHELD_FUNCTION_UNUSED}
    assert {"multi_turn_miss_func_33", "multi_turn_miss_func_133"} <= unused


def test_a_report_counts_tasks_not_findings():
    findings = (Finding("a", -1, Kind.TURN_COUNT, "", "1 of 2"), Finding("a", -1, Kind.TURN_COUNT, "", "1 of 2"))
    assert AuditReport(5, findings).num_faulty_tasks == 1
