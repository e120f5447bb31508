"""Taint: who learned from a version of a span, whether it serves, and what replaces it."""

import shutil

import pytest

from spanwise.orchestrator import Artifact, Model, NotRecorded, PushedModel, UsageError
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.run import Trigger
from spanwise.scheduler.inspect import taint
from tests.scheduler.past import Past
from tests.scheduler.records import DAY


@pytest.fixture
def past(tmp_path):
    return Past(tmp_path)


@pytest.fixture
def corrected(past):
    """Days 1 to 3, a model of days 1 and 2 and one of 1 to 3, both pushed; then day 2 came again. No model since."""
    days = []
    for number in range(3):
        past.begin(DAY + number)
        days.append(past.ingest(DAY + number))
        past.count(days[-1])
        if number:
            model = past.train(list(days))
            past.evaluate(model, days)
            past.push(model, 100 + number)
    past.begin(DAY + 1)
    past.ingest(DAY + 1, version=2)
    return past


def test_the_backfill_has_the_arguments_of_the_newest_run(corrected):
    """Without them it would read the pipeline's own folder of data, which may have that day too."""
    corrected.begin(DAY + 1, typed=("data=other data", "window=3"))

    found = taint.trace_taint(corrected.store, "flights", DAY + 1)

    assert found.backfill == (
        "spanwise backfill flights.py --param 'data=other data' --param window=3 --span 2013-01-06"
    )


@pytest.mark.parametrize("facts", [{"replay": True}, {"trigger": Trigger.PUSH}])
def test_the_arguments_are_those_of_an_ordinary_run(corrected, facts):
    """A replay tries others, and who pushes a model by name does not run the pipeline."""
    corrected.begin(DAY + 1, typed=("window=3",))
    corrected.begin(typed=("window=1",), **facts)

    found = taint.trace_taint(corrected.store, "flights", DAY + 1)

    assert found.backfill == "spanwise backfill flights.py --param window=3 --span 2013-01-06"


def test_each_node_that_trains_has_to_have_learned_without_it(corrected):
    """One of two was trained again since: the newest model of the other is still tainted."""
    address = taint._ingesting_channels(corrected.store, "flights")[0]
    days = [corrected.store.of_span(address, DAY + n) for n in range(3)]
    spans = [DAY + n for n in range(3)]
    old, new = ([versions[place] for versions in days] for place in (0, -1))
    corrected.do("Trainer2", {"examples": old}, model=[corrected.draft(Model, "second", spans=spans)])
    corrected.train(new)

    assert not taint.trace_taint(corrected.store, "flights", DAY + 1).outlived

    corrected.do("Trainer2", {"examples": new}, model=[corrected.draft(Model, "third", spans=spans)])

    assert taint.trace_taint(corrected.store, "flights", DAY + 1).outlived


def test_a_renamed_node_has_learned_without_it_under_its_new_name(past):
    """The Pusher reads its models now; where the node is in that run too, it trains beside the other."""
    past.push(past.train([past.ingest(DAY)]), 1)
    past.begin(DAY + 1)
    examples = [past.ingest(DAY + 1)]
    model = past.do("Fit", {"examples": examples}, model=[past.draft(Model, "m", spans=[DAY + 1])])["model"][0]
    past.push(model, 2)
    past.ingest(DAY, version=2)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert (found.outlived, found.reached) == (True, False)

    past.push(past.train([past.ingest(DAY, version=2)]), 3)
    past.train([past.store.of_span(taint._ingesting_channels(past.store, "flights")[0], DAY)[0]])
    past.push(model, 4)

    assert not taint.trace_taint(past.store, "flights", DAY).outlived


def learned(found):
    return [t.model.name for t in found.models]


def test_every_model_that_read_the_superseded_version_is_found(corrected):
    """Both models learned from day 2 as it was; the one that was pushed last serves."""
    found = taint.trace_taint(corrected.store, "flights", DAY + 1)

    assert learned(found) == ["flights/Trainer/model/1", "flights/Trainer/model/2"]
    assert [t.directly for t in found.models] == [True, True]
    assert [t.serves for t in found.models] == [False, True]
    assert [a.properties["version"] for a in found.wrong] == [1]
    assert found.backfill == "spanwise backfill flights.py --span 2013-01-06"
    assert (found.corrected, found.reached, found.outlived) == (True, True, False)


def test_what_else_was_made_of_it_is_told_as_well(corrected):
    """Statistics of the day, evaluations, blessings and pushes of the models."""
    found = taint.trace_taint(corrected.store, "flights", DAY + 1)

    assert sorted(a.kind for a in found.others) == [
        "ExampleStatistics", "ModelBlessing", "ModelBlessing", "ModelEvaluation", "ModelEvaluation",
        "PushedModel", "PushedModel",
    ]  # fmt: skip


def test_a_model_of_the_corrected_version_is_not_tainted(corrected):
    """After the backfill the newest model learned without it, and serves."""
    address = taint._ingesting_channels(corrected.store, "flights")[0]
    window = [corrected.store.of_span(address, DAY + n)[-1] for n in range(3)]
    corrected.push(corrected.train(window), 200)

    found = taint.trace_taint(corrected.store, "flights", DAY + 1)

    assert learned(found) == ["flights/Trainer/model/1", "flights/Trainer/model/2"]
    assert found.serving == ()
    assert found.outlived
    assert "The newest model learned without it." in taint.format_taint(found)
    assert "spanwise backfill" not in taint.format_taint(found)


def test_a_warm_start_passes_it_on(past):
    """A model that started from one that learned from it learned from it too, though its own window has it no more."""
    old, new = past.ingest(DAY), past.ingest(DAY + 9)
    first = past.train([old])
    second = past.train([new], base=first)
    past.ingest(DAY, version=2)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert learned(found) == [first.name, second.name]
    assert [(t.directly, t.bases) for t in found.models] == [(True, ()), (False, (first.name,))]


def test_training_from_scratch_beside_a_tainted_base_does_not(past):
    """A backfill does not read the base that is connected: what it makes is clean."""
    old, new = past.ingest(DAY), past.ingest(DAY + 9)
    first = past.train([old])
    past.train([new], base=first, from_base=False)
    past.ingest(DAY, version=2)

    assert learned(taint.trace_taint(past.store, "flights", DAY)) == [first.name]


@pytest.mark.parametrize("spans", [None, [DAY, DAY + 9]])
def test_what_is_made_of_a_tainted_model_is_tainted_whatever_it_records(past, spans):
    """An ensemble that records what its models learned from holds them as one that records nothing does, and serves."""
    old, new = past.ingest(DAY), past.ingest(DAY + 9)
    first, second = past.train([old]), past.train([new])
    (blend,) = past.do("Blend", {"models": [first, second]}, model=[past.draft(Model, "blend", spans=spans)])["model"]
    past.push(blend, 7)
    past.ingest(DAY, version=2)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert [(t.model.name, t.origins, t.serves) for t in found.models] == [
        (first.name, (), True),
        (blend.name, (first.name,), True),
    ]
    assert not found.outlived


@pytest.mark.parametrize("warm", [False, True])
def test_a_student_learned_what_its_teacher_did(past, warm):
    """It has read rows itself and says which, and whether it was warm-started; its teacher is not its base."""
    teacher, base = past.train([past.ingest(DAY)]), past.train([past.ingest(DAY + 1)])
    recorded = {"spans": [DAY + 9], "base": base.name if warm else None}
    read = {"examples": [past.ingest(DAY + 9)], "teacher": [teacher], "base": [base] if warm else []}
    (student,) = past.do("Distill", read, model=[past.draft(Model, "student", **recorded)])["model"]
    past.push(student, 7)
    past.ingest(DAY, version=2)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert learned(found) == [teacher.name, student.name]
    assert [t.model.name for t in found.serving] == [student.name]
    assert [(t.bases, t.origins) for t in found.models] == [((), ()), ((), (teacher.name,))]
    assert "warm-started" not in taint.format_taint(found)


def test_a_model_that_was_only_compared_with_a_tainted_one_is_clean(past):
    """An evaluation reads the champion; who is pushed after it learned nothing of the champion."""
    old, new = past.ingest(DAY), past.ingest(DAY + 9)
    champion = past.train([old])
    clean = past.train([new])
    verdict = past.evaluate(clean, [new], baseline=champion)
    past.do("Pusher2", {"model": [clean], **verdict})
    past.ingest(DAY, version=2)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert learned(found) == [champion.name]
    assert {a.kind for a in found.others} == {"ModelEvaluation", "ModelBlessing"}


def test_a_kind_of_a_users_own_passes_it_on(past):
    """Who learns from features that were made of the data learned from the data."""
    features = past.do("Features", {"examples": [past.ingest(DAY)]}, table=[past.draft(Artifact)])["table"]
    model = past.do("Custom", {"table": features}, model=[past.draft(Model, "m")])["model"][0]
    past.ingest(DAY, version=2)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert learned(found) == [model.name]
    assert found.reached, "it does not say what it learned from, so its window is not known"


def test_a_version_can_be_named(corrected):
    """The newest too, as for an erasure; then a corrected one has to be made first."""
    found = taint.trace_taint(corrected.store, "flights", DAY, version=1)

    assert learned(found) == ["flights/Trainer/model/1", "flights/Trainer/model/2"]
    assert not found.corrected
    assert "No newer version of 2013-01-05 was ingested yet" in taint.format_taint(found)


@pytest.fixture
def renamed(past):
    """A model of days 1 and 2, not of the day before; then the node that ingests was renamed, and ingested day 3."""
    past.ingest(DAY - 1)
    read = [past.ingest(DAY), past.ingest(DAY + 1)]
    past.count(read[1])
    past.train(read)
    past.begin(DAY + 2)
    past.count(past.ingest(DAY + 2, node="ExampleGen2"))
    return past


def test_the_backfill_names_no_node_that_was_renamed(renamed):
    """It would be refused; days that the old name had are in the window of the new one where that reaches so far."""
    near = taint.trace_taint(renamed.store, "flights", DAY + 1)
    renamed.ingest(DAY + 3, node="ExampleGen2")
    far = taint.trace_taint(renamed.store, "flights", DAY + 1, node="ExampleGen")

    assert near.target == "2013-01-06"
    assert (far.target, far.reached) == ("2013-01-08", False)


def test_a_node_that_was_renamed_corrects_what_it_had_published_before(renamed):
    """Asked about under either name; a version that is named is that of this name where it has one."""
    renamed.ingest(DAY + 1, version=2, node="ExampleGen2")

    for node in ("", "ExampleGen", "ExampleGen2"):
        found = taint.trace_taint(renamed.store, "flights", DAY + 1, node=node)
        assert (found.corrected, learned(found)) == (True, ["flights/Trainer/model/1"])
    renamed.ingest(DAY + 1, node="ExampleGen2")
    again = taint.trace_taint(renamed.store, "flights", DAY + 1, node="ExampleGen2", version=1)
    assert learned(again) == []


@pytest.fixture
def joined(past):
    """Day 1 of two nodes, one of which was corrected, and a model of each as it is now; then one of the old day."""
    past.begin(DAY)
    old = past.ingest(DAY)
    returns = past.ingest(DAY, node="Returns")
    past.train([old])
    past.train([past.ingest(DAY, version=2)])
    past.do("Trainer2", {"examples": [returns]}, model=[past.draft(Model, "returns", spans=[DAY])])
    return past


def test_the_span_of_one_of_several_nodes_can_be_asked_about(joined):
    """What the others published for it taints nothing then, whether it has the same version or an old one."""
    everything = taint.trace_taint(joined.store, "flights", DAY)
    found = taint.trace_taint(joined.store, "flights", DAY, node="Returns")
    same = taint.trace_taint(joined.store, "flights", DAY, node="Returns", version=1)

    assert learned(everything) == ["flights/Trainer/model/1"]
    assert learned(found) == learned(same) == ["flights/Trainer2/model/1"]
    assert (found.corrected, found.outlived) == (False, False)


def test_what_several_nodes_have_published_is_named_by_node(joined):
    """Which of them is wrong could not be seen: v1, v1 and v2."""
    found = taint.format_taint(taint.trace_taint(joined.store, "flights", DAY))

    assert "was published as ExampleGen v1 (wrong), Returns v1, ExampleGen v2." in found
    assert "learned from ExampleGen v1:" in found


@pytest.mark.parametrize(("text", "node"), [("2013-01-05", ""), ("Returns=2013-01-05", "Returns")])
def test_a_node_is_named_before_its_span(joined, text, node):
    """As in other commands."""
    assert taint.split_span(joined.store, "flights", text) == (node, "2013-01-05", Calendar.DAY)


def test_a_node_that_ingests_nothing_is_refused(joined):
    """The message has what can be asked."""
    with pytest.raises(UsageError, match=r"--span ExampleGen=2013-01-05 --span Returns=2013-01-05"):
        taint.split_span(joined.store, "flights", "Trainer=2013-01-05")


def test_what_has_left_the_window_is_replaced_by_the_newest_span(past):
    """No backfill of the old day would train on it; one of the newest trains from scratch."""
    first = past.train([past.ingest(DAY), past.ingest(DAY + 1)])
    past.push(past.train([past.ingest(DAY + 2), past.ingest(DAY + 3)], base=first), 7)
    past.ingest(DAY, version=2)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert not found.reached
    assert found.backfill == "spanwise backfill flights.py --span 2013-01-08"
    assert "no longer contains 2013-01-05" in taint.format_taint(found)


def test_a_model_that_serves_on_after_its_window_was_not_warm_started(past):
    """Newer models learned without the day, and none of them was pushed."""
    past.push(past.train([past.ingest(DAY), past.ingest(DAY + 1)]), 7)
    past.train([past.ingest(DAY + 2), past.ingest(DAY + 3)])
    past.ingest(DAY, version=2)

    said = taint.format_taint(taint.trace_taint(past.store, "flights", DAY))

    assert "The newest window no longer contains 2013-01-05.\n" in said
    assert "warm-started" not in said


@pytest.mark.parametrize("late", [1, 3])
def test_a_window_that_left_a_span_out_still_contains_its_first(past, late):
    """Whether by `missing=`, and the span has come since, or by `skip=`: the window counts spans, not artifacts."""
    days = {n: past.ingest(DAY + n) for n in range(4) if n != late or late == 3}
    past.push(past.train([days[n] for n in range(4) if n != late]), 7)
    if late == 1:
        past.ingest(DAY + 1)
    past.ingest(DAY, version=2)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert found.reached
    assert found.backfill == "spanwise backfill flights.py --span 2013-01-05"


def test_the_windows_of_all_nodes_that_train_count(past):
    """One trains every day on one day, another on three by a clock of its own, and would read the wrong one again."""
    days = [past.ingest(DAY + n) for n in range(3)]
    past.do("Trainer2", {"examples": days}, model=[past.draft(Model, "wide", spans=[DAY + n for n in range(3)])])
    past.train(days[2:])
    for number in (3, 4):
        past.train([past.ingest(DAY + number)])

    found = taint.trace_taint(past.store, "flights", DAY + 2)

    assert found.reached
    assert found.backfill == "spanwise backfill flights.py --span 2013-01-07"


def test_a_window_that_held_all_spans_may_be_wider(past):
    """As on the first days of a pipeline; its backfill trains whether it is or not."""
    past.train([past.ingest(DAY)])
    for number in range(1, 4):
        past.ingest(DAY + number)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert found.reached
    assert found.backfill == "spanwise backfill flights.py --span 2013-01-05 --force"


def test_the_window_of_a_replay_does_not_count(past):
    """No other run reads what it has made, however wide its window was."""
    days = [past.ingest(DAY + n) for n in range(5)]
    past.train(days[1:3])
    past.train(days[3:])
    past.begin(replay=True)
    past.do("Trainer", {"examples": days[1:]}, model=[past.draft(Model, "m", spans=[DAY + n for n in range(1, 5)])])

    found = taint.trace_taint(past.store, "flights", DAY + 1)

    assert not found.reached


def test_what_serves_is_what_lies_there(corrected):
    """Somebody has taken the newest version away, so the one before it serves again."""
    shutil.rmtree(corrected.serving / "102")

    found = taint.trace_taint(corrected.store, "flights", DAY + 1)

    assert [t.serves for t in found.models] == [True, False]


def test_the_same_model_serves_under_whatever_version(corrected):
    """It was pushed again by another pipeline, from a copy."""
    (corrected.serving / "101").rename(corrected.serving / "900")

    found = taint.trace_taint(corrected.store, "flights", DAY + 1)

    assert [t.serves for t in found.models] == [True, False]


def test_where_nothing_can_be_seen_the_last_push_serves(past):
    """The destination is on another machine."""
    first, second = past.train([past.ingest(DAY)]), past.train([past.ingest(DAY + 1)])
    past.push(first, 1, on_disk=False)
    past.ingest(DAY, version=2)
    before = taint.trace_taint(past.store, "flights", DAY)

    past.push(second, 2, on_disk=False)
    after = taint.trace_taint(past.store, "flights", DAY)

    assert [t.serves for t in before.models] == [True]
    assert [t.serves for t in after.models] == [False]


def test_what_a_renamed_pusher_pushes_replaces_what_was_there(past):
    """The place is an endpoint, and what was pushed to it last serves."""
    endpoint = {"pushed": 1, "pushed_destination": "https://serve/flights"}
    first, second = past.train([past.ingest(DAY)]), past.train([past.ingest(DAY + 1)])
    past.ingest(DAY, version=2)
    for node, model in (("Pusher", first), ("Deploy", second)):
        past.do(node, {"model": [model]}, pushed_model=[past.draft(PushedModel, model=model.name, **endpoint)])

    found = taint.trace_taint(past.store, "flights", DAY)

    assert [t.serves for t in found.models] == [False]
    assert [p.destination for p in found.models[0].pushes] == ["https://serve/flights"]


def test_a_model_serves_where_its_export_does(past):
    """As the client says; and nobody was warm-started, though the export was made of a tainted model."""
    model = past.train([past.ingest(DAY), past.ingest(DAY + 1)])
    (export,) = past.do("Export", {"model": [model]}, model=[past.draft(Model, "export")])["model"]
    past.push(export, 1)
    past.train([past.ingest(DAY + 2), past.ingest(DAY + 3)])
    past.ingest(DAY, version=2)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert [t.model.name for t in found.serving] == [model.name, export.name]
    assert [(t.bases, t.origins) for t in found.models] == [((), ()), ((), (model.name,))]
    assert "warm-started" not in taint.format_taint(found)


def test_a_destination_that_is_gone_serves_nothing(past):
    """Its folder was removed, and the one that held it is here."""
    past.push(past.train([past.ingest(DAY)]), 1)
    past.ingest(DAY, version=2)
    shutil.rmtree(past.serving)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert [t.serves for t in found.models] == [False]


def test_the_same_version_published_again_supersedes_nothing(past):
    """Its files were gone and were made again, as they were: whoever read either publication read the same rows."""
    model = past.train([past.ingest(DAY)])
    past.ingest(DAY)

    found = taint.trace_taint(past.store, "flights", DAY)

    assert not found.corrected
    assert learned(found) == [model.name]


def test_a_pattern_without_versions_counts_publications(past):
    """What was ingested from changed files is another publication, and the earlier one is superseded."""
    model = past.train([past.ingest(DAY, version=None, content="old")])
    past.ingest(DAY, version=None, content="new")

    found = taint.trace_taint(past.store, "flights", DAY)

    assert learned(found) == [model.name]
    assert "publication 1 (wrong), publication 2" in taint.format_taint(found)
    assert learned(taint.trace_taint(past.store, "flights", DAY, version=2)) == []


def test_a_span_that_was_never_published_is_refused(corrected):
    """With those that are near."""
    with pytest.raises(NotRecorded, match=r"nothing for span 2013-01-20\. Nearest: 2013-01-05, 2013-01-06, 2013-01-07"):
        taint.trace_taint(corrected.store, "flights", DAY + 15)


def test_a_version_that_is_not_there_is_refused(corrected):
    """With those that are."""
    with pytest.raises(NotRecorded, match="no version 7; it has v1, v2"):
        taint.trace_taint(corrected.store, "flights", DAY + 1, version=7)


def test_without_a_newer_version_the_newest_is_meant(corrected):
    """Who asks before the correction has come wants to know what the bad span has reached."""
    found = taint.trace_taint(corrected.store, "flights", DAY)

    assert found == taint.trace_taint(corrected.store, "flights", DAY, version=1)
    assert "No newer version" in taint.format_taint(found)


def test_the_document_has_it_all(corrected):
    """Versions, models with their pushes, what serves, and the command."""
    told = taint.taint_document(taint.trace_taint(corrected.store, "flights", DAY + 1))

    assert [(p["version"], p["asked_about"]) for p in told["published"]] == [(1, True), (2, False)]
    assert told["serving"] == ["flights/Trainer/model/2"]
    assert told["models"][1]["pushes"][0]["version"] == "102"
    assert told["span_label"] == "2013-01-06"
    assert told["backfill"].startswith("spanwise backfill")
    assert len(told["others"]) == 7
