"""The tables: every cell from its own records, recipes apart, what was not run empty."""

import dataclasses
import json
import re
import shutil
from contextlib import suppress

import numpy as np
import pytest

from locotrans.cli import main
from locotrans.models import create_model, list_models
from locotrans.training import preset_config
from locotrans.training.config import parse_options, to_json
from locotrans.training.loop import best_test_epoch
from locotrans.training.report import read_curves, read_results, render
from locotrans.training.report.collect import aggregate
from locotrans.training.report.paper import PAPER, network_cost

FULL, LIGHT = "locotrans_dgcnn", "locotrans_dgcnn_light"


def heads(accuracy):
    figures = {"class_accuracy": accuracy - 0.05, "rotation_agreement": 0.995}
    return {
        "invariant": {"overall_accuracy": accuracy - 0.01, **figures},
        "combined": {"overall_accuracy": accuracy, **figures},
    }


def evaluation(accuracy, rotation="so3", data="modelnet40:hdf5", split="test", samples=2468):
    facts = {"rotation": rotation, "data": data, "split": split, "samples": samples}
    return {"heads": heads(accuracy), **facts}


def settings(model, **changes):
    return to_json(dataclasses.replace(preset_config("modelnet40", model), **changes))


def run_record(config, measured, seconds=60.0, **rest):
    """The record of a run; ``config`` as JSON values."""
    facts = {"seconds": seconds, "environment": {"device": "NVIDIA H200"}}
    return {"config": config, "evaluation": measured, **facts, **rest}


@pytest.fixture
def shelf(tmp_path):
    """Write documents as files; returns what writes one, and where they are."""
    files = []

    def write(document):
        files.append(tmp_path / f"{len(files)}.json")
        files[-1].write_text(json.dumps(document))

    def record(model, accuracy, best=None, seconds=60.0, **changes):
        chosen = {"best_test_epoch": {"overall_accuracy": best, "of": 25}} if best else {}
        write(run_record(settings(model, **changes), evaluation(accuracy), seconds, **chosen))

    def evaluated(model, measured, stored=None, **changes):
        rounded = {"stored": stored} if stored else {}
        write({**measured, "training": {"settings": settings(model, **changes), **rounded}})

    return record, evaluated, files


def report(files):
    return render(read_results(files), cost=lambda model, options: (6_000_000, 8_000_000_000))


def section(text, title):
    """Return the rows of a table by their first cell."""
    table = re.split(r"^#+ ", text.split(title, 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("|")]
    return {row[0].strip(): [c.strip() for c in row[1:]] for row in cells}


def test_a_run_folder_gives_its_evaluations_too(shelf, tmp_path):
    record, evaluated, files = shelf
    record(FULL, 0.91)
    evaluated(FULL, {**evaluation(0.93, "z"), "model": FULL})
    folder = tmp_path / "run"
    folder.mkdir()
    for file, name in zip(files, ("record.json", "z.json"), strict=True):
        file.rename(folder / name)
    (folder / "config.json").write_text(json.dumps(settings(FULL)))
    row = section(report([folder]), "Tab. 1:")["LocoTrans"]
    assert row == ["91.6", "93.00", "91.6", "91.00", "91.5", ""]


def test_cells_come_from_their_own_records(shelf):
    record, evaluated, files = shelf
    record(FULL, 0.91, seed=0)
    record(FULL, 0.92, seed=1)
    evaluated(FULL, evaluation(0.93, "z"), seed=0)
    record(FULL, 0.9, rotation="so3")
    record(LIGHT, 0.88)
    record("dgcnn", 0.2)
    record(FULL, 0.87, options=("k=10",))
    record(FULL, 0.86, options=("k=20", "frames=handcrafted"))  # k=20 is the usual one
    record(LIGHT, 0.85, options=("relative_pose=none",))
    text = report(files)
    rows = section(text, "Tab. 1:")
    assert rows["LocoTrans"] == ["91.6", "93.00", "91.6", "91.50 ± 0.50 (2)", "91.5", "90.00"]
    assert rows["LocoTrans, light"] == ["", "", "91.5", "88.00", "", ""]
    assert rows["DGCNN"] == ["92.2", "", "20.6", "20.00", "81.1", ""]
    assert rows["PointNet"] == ["89.2", "", "16.4", "", "75.5", ""]
    assert section(text, "Tab. 10:")["K = 10"] == ["91.3", "87.00", ""]
    assert section(text, "Tab. 10:")["K = 40"] == ["90.8", "", ""]
    assert section(text, "Tab. 5:")["hand-crafted"] == ["91.2", "86.00", ""]
    assert section(text, "Tab. 6:")["none"] == ["", "", "85.00"]
    rows = section(text, "Tab. 12:")
    means = ["86.50 ± 0.50 (2)", "85.00"]  # over the classes
    assert rows["invariant"] == ["90.6", "90.50 ± 0.50 (2)", means[0], "90.4", "89.00", means[1]]
    assert rows["light: sum"] == ["91.5", "88.00", "83.00", "", "", ""]
    assert section(text, "Tab. 7 and 13:")["parameters (millions)"][3] == "6.00"
    assert "best test epoch" not in text.lower()


def test_recipes_are_never_mixed(shelf):
    record, _, files = shelf
    record(FULL, 0.91)
    record(FULL, 0.8, epochs=60)
    record(FULL, 0.7, averaging=0.999)
    text = report(files)
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [part.splitlines()[0] for part in parts] == [
        "modelnet40: the paper's recipe for ModelNet40",
        "modelnet40: the paper's recipe for ModelNet40, but averaging 0.999",
        "modelnet40: the paper's recipe for ModelNet40, but epochs 60",
    ]
    for part, value in zip(parts, ("91.00", "70.00", "80.00"), strict=True):
        assert section(part, "Tab. 1:")["LocoTrans"][3] == value
        assert len({"91.00", "70.00", "80.00"} & set(re.findall(r"\d\d\.00", part))) == 1


def test_precision_is_no_other_recipe_and_is_told(shelf):
    record, evaluated, files = shelf
    record(FULL, 0.91, precision="mixed")
    record(FULL, 0.93, best=0.935, precision="mixed", seed=1)
    record(LIGHT, 0.88)
    record(LIGHT, 0.9, precision="mixed")
    rows = [{"name": "reference", "count": 512, "loss": 0.0, "overall_accuracy": 0.8}]
    rows[0]["heads"] = heads(0.8)
    shared = {"rotation": "so3", "data": "hdf5:up=y", "split": "test"}
    evaluated(LIGHT, {**shared, "rows": rows}, precision="mixed")
    text = report(files)
    assert text.count("\n## ") == 1
    table = section(text, "Tab. 1:")
    assert table["LocoTrans"][3] == "92.00 ± 1.00 (2) †"
    assert table["LocoTrans, light"][3] == "88.00; 90.00 †"  # never averaged together
    mine = text[text.index("Tab. 1:") :]
    assert "\n† trained in mixed precision\n" in mine[: mine.index("\n### ")]
    tables = text.split("\n### ")
    assert all(("† |" in table) == ("† trained" in table) for table in tables)
    where = "z/so3 | modelnet40:hdf5 test, 2,468 clouds"
    assert f"| {FULL} |  | mixed | {where} | 92.00 ± 1.00 (2) |" in text
    assert f"| {LIGHT} |  | float32 | {where} | 88.00 |" in text
    assert section(text, "### Best test epoch")[FULL][1] == "mixed"
    assert f"### Samplings: {LIGHT}, mixed precision, z/so3" in text


def test_validation_and_other_data_stay_out_of_the_paper_s_tables(shelf):
    _, evaluated, files = shelf
    evaluated(FULL, evaluation(0.99, split="validation"))
    evaluated(FULL, evaluation(0.98, data="builtin"))
    text = report(files)
    assert section(text, "Tab. 1:")["LocoTrans"] == ["91.6", "", "91.6", "", "91.5", ""]
    assert "modelnet40:hdf5 validation, 2,468 clouds | 99.00" in text


def test_an_evaluation_of_a_run_is_not_counted_twice(shelf):
    record, evaluated, files = shelf
    record(FULL, 0.91, best=0.915)
    excluded = {"without_excluded": {"excluded": 87, "heads": heads(0.905)}}
    evaluated(FULL, {**evaluation(0.9101), **excluded})
    text = report(files)
    assert section(text, "Tab. 1:")["LocoTrans"][3] == "91.01"
    assert "| 90.50 without 87 |" in text
    rows = section(text, "### Best test epoch")
    where = ["", "float32", "z/so3", "modelnet40:hdf5 test, 2,468 clouds"]
    assert rows[FULL] == [*where, "overall", "91.01", "91.50", "25"]


def test_where_nothing_was_turned_there_is_no_agreement(shelf):
    _, evaluated, files = shelf
    evaluated("dgcnn", evaluation(0.91, "none"), rotation="none")
    evaluated("dgcnn", evaluation(0.2), rotation="none")
    text = report(files)
    where = "modelnet40:hdf5 test, 2,468 clouds"
    assert f"| none/none | {where} | 91.00 | 86.00 |  |" in text
    assert f"| none/so3 | {where} | 20.00 | 15.00 | 99.50 |" in text


def test_training_times_are_told_a_run_at_a_time(shelf):
    record, evaluated, files = shelf
    record(FULL, 0.91, seconds=1175)
    record(FULL, 0.92, seconds=1200, seed=1)
    record(FULL, 0.9, seconds=1300, rotation="so3")
    record(LIGHT, 0.88, seconds=30, precision="mixed")
    evaluated(FULL, evaluation(0.9101))  # a newer measurement does not hide the record's time
    evaluated("dgcnn", evaluation(0.2))  # of which there is no record
    table = report(files).split("### Time of training, with the evaluations in between\n\n")[1]
    assert table.split("\n\n")[0].strip().splitlines()[2:] == [
        f"| {FULL} |  | float32 | so3 | NVIDIA H200 | 21.7 |",
        f"| {FULL} |  | float32 | z | NVIDIA H200 | 19.6, 20.0 |",
        f"| {LIGHT} |  | mixed | z | NVIDIA H200 | 0.5 |",
    ]


def test_packed_weights_do_not_take_the_place_of_their_run(shelf):
    record, evaluated, files = shelf
    record(FULL, 0.91, best=0.915)
    evaluated(FULL, evaluation(0.9), stored="float16")
    rows = [{"name": "noise", "value": 0.01, "heads": heads(0.8)}]
    shared = {"rotation": "so3", "data": "modelnet40:hdf5", "split": "test", "samples": 2468}
    evaluated(FULL, {**shared, "rows": rows}, stored="float16")
    text = report(files)
    assert section(text, "Tab. 1:")["LocoTrans"][3] == "91.00"
    assert section(text, "Tab. 9:")["LCRF, noise 0.01"] == ["86.8", "", ""]
    where = "z/so3 | modelnet40:hdf5 test, 2,468 clouds"
    assert f"| {FULL} |  | float32 | {where} | 91.00 |" in text
    assert f"| {FULL} |  | float32, weights in float16 | {where} | 90.00 |" in text
    assert section(text, "### Best test epoch")[FULL][-3:] == ["91.00", "91.50", "25"]
    assert f"### Perturbations: {FULL}, weights in float16, z/so3, modelnet40:hdf5 test" in text


def test_evaluations_of_some_or_of_other_clouds_replace_no_others(shelf):
    _, evaluated, files = shelf
    evaluated(FULL, {**evaluation(0.91), "points": 1024})
    evaluated(FULL, {**evaluation(0.7), "points": 512})
    evaluated(FULL, {**evaluation(0.6, samples=100), "points": 1024})
    evaluated(LIGHT, {**evaluation(0.5), "points": 512})
    text = report(files)
    assert section(text, "Tab. 1:")["LocoTrans"][3] == "91.00"
    assert section(text, "Tab. 1:")["LocoTrans, light"][3] == ""
    assert "modelnet40:hdf5 test, 2,468 clouds | 91.00" in text
    assert "modelnet40:hdf5 test, 2,468 clouds of 512 points | 70.00" in text
    assert "modelnet40:hdf5 test, 100 clouds | 60.00" in text


def test_a_part_of_the_split_fills_no_cell(shelf):
    _, evaluated, files = shelf
    evaluated(FULL, {**evaluation(0.6, samples=100), "split_size": 2468})
    evaluated(LIGHT, {**evaluation(0.8), "split_size": 2468})
    evaluated(LIGHT, evaluation(0.81), seed=1)  # as earlier versions wrote it
    text = report(files)
    assert section(text, "Tab. 1:")["LocoTrans"][3] == ""
    assert section(text, "Tab. 1:")["LocoTrans, light"][3] == "80.50 ± 0.50 (2)"
    assert "modelnet40:hdf5 test, 100 of 2,468 clouds | 60.00" in text


def test_a_few_shapes_in_its_layout_are_not_modelnet40(shelf):
    _, evaluated, files = shelf
    files_of_100 = {**evaluation(0.6, samples=100), "split_size": 100}  # there are no others
    evaluated(FULL, files_of_100)
    rows = [{"name": "noise", "value": 0.01, "heads": heads(0.5)}]
    evaluated(LIGHT, {**files_of_100, "rows": rows})
    evaluated("dgcnn", {**evaluation(0.2), "split_size": 2468})
    text = report(files)
    assert section(text, "Tab. 1:")["LocoTrans"] == ["91.6", "", "91.6", "", "91.5", ""]
    assert section(text, "Tab. 9:")["LCRF, noise 0.01"] == ["86.8", "", ""]
    assert section(text, "Tab. 1:")["DGCNN"][3] == "20.00"
    assert "modelnet40:hdf5 test, 100 clouds | 60.00" in text


def test_other_rotations_have_their_own_rows(shelf):
    _, evaluated, files = shelf
    for seed, rotations, rotation_seed, accuracy in (
        (0, 3, 0, 0.90),
        (0, 3, 1, 0.91),
        (0, 10, 0, 0.92),
        (1, 3, 0, 0.96),
    ):
        way = {"rotations_per_shape": rotations, "seed": rotation_seed}
        evaluated(FULL, {**evaluation(accuracy), **way}, seed=seed)
    text = report(files)
    # in the paper's table one way of measuring, that of the most networks
    assert section(text, "Tab. 1:")["LocoTrans"][3] == "93.00 ± 3.00 (2)"
    cell = "modelnet40:hdf5 test, 2,468 clouds"
    assert f"{cell}, 3 rotations each | 93.00 ± 3.00 (2) |" in text
    assert f"{cell}, 3 rotations each, rotation seed 1 | 91.00 |" in text
    assert f"{cell}, 10 rotations each | 92.00 |" in text


@pytest.mark.parametrize("order", [1, -1])
def test_figures_without_shapes_stay_beside_a_newer_measurement(shelf, order):
    _, evaluated, files = shelf
    rest = {"without_excluded": {"excluded": 87, "heads": heads(0.905)}}
    for seed, date, more in ((0, "2026-01-09", rest), (0, "2026-01-10", {}), (1, "2026-01-10", {})):
        where = {"environment": {"date": f"{date}T12:00:00+00:00"}}
        evaluated(FULL, {**evaluation(0.9), **where, **more}, seed=seed)
    assert "90.50 without 87 (1 of 2)" in report(files[::order])


def test_two_runs_of_one_seed_are_refused(shelf):
    record, _, files = shelf
    record(FULL, 0.91, seconds=60.0)
    record(FULL, 0.91, seconds=60.0)  # a copy
    assert section(report(files), "Tab. 1:")["LocoTrans"][3] == "91.00"
    record(FULL, 0.5, seconds=70.0)
    with pytest.raises(ValueError, match=r"2.json is the record of another run with the settings"):
        report(files)


@pytest.mark.parametrize("order", [1, -1])
def test_clouds_of_another_size_fill_no_cell_of_perturbations(shelf, order):
    _, evaluated, files = shelf
    shared = {"rotation": "so3", "data": "modelnet40:hdf5", "split": "test", "samples": 2468}
    for points, share in ((1024, 0.7), (512, 0.2)):
        rows = [{"name": "noise", "value": 0.02, "heads": heads(share), "points": points}]
        evaluated(LIGHT, {**shared, "points": points, "rows": rows})
    assert section(report(files[::order]), "Tab. 9:")["LCRF, noise 0.02"] == ["77.1", "", "70.00"]


@pytest.mark.parametrize("order", [1, -1])
def test_two_layouts_of_one_data_set_are_not_two_networks(shelf, order):
    _, evaluated, files = shelf
    for model, layout, seed, accuracy in (
        (FULL, "hdf5", 0, 0.90),
        (FULL, "off", 0, 0.94),
        (LIGHT, "hdf5", 0, 0.80),
        (LIGHT, "off", 0, 0.84),
        (LIGHT, "off", 1, 0.86),
    ):
        evaluated(model, evaluation(accuracy, data=f"modelnet40:{layout}"), seed=seed)
    text = report(files[::order])
    assert section(text, "Tab. 1:")["LocoTrans"][3] == "90.00"
    assert section(text, "Tab. 1:")["LocoTrans, light"][3] == "85.00 ± 1.00 (2)"
    assert "modelnet40:hdf5 test, 2,468 clouds | 80.00 |" in text
    assert "modelnet40:off test, 2,468 clouds | 94.00 |" in text


@pytest.mark.parametrize("order", [1, -1])
def test_of_one_measurement_the_newest_counts(shelf, order):
    _, evaluated, files = shelf
    for accuracy, date in ((0.9, None), (0.91, "2026-01-09"), (0.92, "2026-01-10")):
        where = {"environment": {"date": f"{date}T12:00:00+00:00"}} if date else {}
        evaluated(FULL, {**evaluation(accuracy), **where})
    assert section(report(files[::order]), "Tab. 1:")["LocoTrans"][3] == "92.00"


def test_curves_of_folders_of_one_name_are_kept_apart(tmp_path):
    for place in ("full/seed0", "light/seed0"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "metrics.jsonl").write_text('{"epoch": 1}\n')
    runs = [tmp_path / "full/seed0", tmp_path / "light/seed0"]
    assert list(read_curves(runs)) == [str(run) for run in runs]
    assert list(read_curves(runs[:1])) == ["seed0"]


def test_perturbations_and_samplings(shelf):
    _, evaluated, files = shelf
    shared = {"rotation": "so3", "data": "modelnet40:hdf5", "split": "test", "samples": 2468}
    cases = [("none", 0, 0.9), ("noise", 0.02, 0.7), ("dropped", 300, 0.6), ("dropped", 20, 0.8)]
    rows = [{"name": n, "value": v, "heads": heads(x)} for n, v, x in cases]
    evaluated(LIGHT, {**shared, "rows": rows})
    sampled = [
        {"name": n, "count": c, "loss": 0.9 - x, "overall_accuracy": x, "heads": heads(x)}
        for n, c, x in (("reference", 1024, 0.9), ("scan lines", 512, 0.85))
    ]
    evaluated(LIGHT, {**shared, "data": "hdf5:up=y", "rows": sampled})
    text = report(files)
    assert section(text, "Tab. 9:")["LCRF, noise 0.02"] == ["77.1", "", "70.00"]
    assert section(text, "Tab. 9:")["LCRF, 300 points dropped"] == ["72.4", "", "60.00"]
    assert re.findall(r"\| dropped \| (\d+) \| (\S+) \| 99.50 \|", text) == [
        ("20", "80.00"),
        ("300", "60.00"),
    ]
    assert f"### Perturbations: {LIGHT}, z/so3, modelnet40:hdf5 test, 2,468 clouds\n" in text
    assert section(text, "### Samplings")["scan lines"] == ["512", "85.00", "5.00"]


def test_files_that_are_no_records_are_named(tmp_path):
    file = tmp_path / "other.json"
    for document in ({"a": 1}, {"config": {}, "evaluation": {"heads": {"combined": {}}}}):
        file.write_text(json.dumps(document))
        with pytest.raises(ValueError, match=r"other\.json is neither a record of `train` nor"):
            read_results([file])
    with pytest.raises(ValueError, match=r"gone\.json does not exist; name run folders"):
        read_results([tmp_path / "gone.json"])
    with pytest.raises(ValueError, match="is not a finished run"):
        read_results([tmp_path])


def test_aggregate():
    assert aggregate([0.9]) == "90.00"
    assert aggregate([0.9, 0.91, 0.94]) == "91.67 ± 2.00 (3)"


def test_best_test_epoch_is_of_the_test_split_and_of_several():
    def line(epoch, accuracy, split="test"):
        return {"epoch": epoch, "evaluation": {"split": split, "overall_accuracy": accuracy}}

    lines = [{"epoch": 1}, line(2, 0.5), line(4, 0.7), line(6, 0.7), line(8, 0.6)]
    assert best_test_epoch(lines) == {"epoch": 4, "overall_accuracy": 0.7, "of": 4}
    assert best_test_epoch(lines[:2]) is None
    assert best_test_epoch([line(2, 0.5, "validation"), line(4, 0.7, "validation")]) is None


def test_every_query_of_the_paper_s_tables_can_be_run():
    paper = json.loads(PAPER.read_text())
    for table in paper["tables"]:
        for row in table["rows"]:
            for column in table["columns"]:
                query = {**column.get("ours", {}), **row.get("ours", {})}
                if "ours" not in column or "ours" not in row:
                    continue
                assert query["model"] in list_models()
                assert {"train", "test"} <= query.keys()
                weights = {"orthogonality_weight", "consistency_weight"}
                options = {k: v for k, v in query.get("options", {}).items() if k not in weights}
                texts = [f"{name}={value.lower()}" for name, value in options.items()]
                parsed = parse_options(query["model"], texts)
                assert {name: str(value) for name, value in parsed.items()} == options


def test_cost_counts_parameters():
    parameters, flops = network_cost("pointnet", (), 32)
    assert parameters == sum(p.numel() for p in create_model("pointnet", 40).parameters())
    assert flops > 2 * 32 * 128 * 1024  # its widest layer alone


def test_the_command(uncut, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("locotrans.training.report.document.network_cost", lambda *_: (1, 2))
    out, curves = tmp_path / "report.md", tmp_path / "curves.png"
    main(["report", str(uncut), "--out", str(out), "--curves", str(curves)])
    text = out.read_text()
    assert "![training curves](curves.png)" in text
    assert curves.read_bytes().startswith(b"\x89PNG")
    assert "## No preset: the defaults, but" in text
    assert "widths=8,8 " in text  # as it is given to `train`
    record = json.loads((uncut / "record.json").read_text())
    assert f"| {100 * record['evaluation']['overall_accuracy']:.2f} |" in text
    with pytest.raises(SystemExit):
        main(["report", str(uncut / "record.json"), "--curves", str(curves)])
    assert "needs run folders" in capsys.readouterr().err


def parts_evaluation(instance, rotation="so3", data="shapenetpart:hdf5", samples=2874):
    figures = {
        "instance_miou": instance,
        "class_miou": instance - 0.04,
        "overall_accuracy": 0.93,
        "rotation_agreement": 0.999,
        "categories": {"Airplane": 0.8, "Chair": 0.9},
    }
    heads = {"invariant": figures, "combined": figures}
    facts = {"rotation": rotation, "data": data, "split": "test", "samples": samples}
    return {"heads": heads, **facts}


def test_segmentation_has_its_own_tables(tmp_path):
    model = "locotrans_dgcnn_partseg"
    files = []
    for seed, instance in ((0, 0.83), (1, 0.84)):
        config = to_json(dataclasses.replace(preset_config("shapenetpart", model), seed=seed))
        files.append(tmp_path / f"{seed}.json")
        document = run_record(config, parts_evaluation(instance))
        files[-1].write_text(json.dumps(document))
    text = report(files)
    mine = text[text.index("## shapenetpart: ") :]
    assert "Tab. 3: Part segmentation" in mine
    assert "ModelNet40" not in text  # nothing that classifies was run
    (line,) = re.findall(r"^\| LocoTrans \|.*$", mine, re.MULTILINE)
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[3:7] == ["80.1", "79.50 ± 0.50 (2)", "84.0", "83.50 ± 0.50 (2)"]
    assert "| Airplane | 80.00 ± 0.00 (2) |" in mine
    assert "Tab. 8" not in text


def test_options_of_a_recipe_are_told_where_a_run_departs_from_them(tmp_path):
    ours = preset_config("shapenetpart_adamw")
    files = []
    for options, instance in ((ours.options, 0.83), (("k=20",), 0.82)):
        files.append(tmp_path / f"{instance}.json")
        config = to_json(dataclasses.replace(ours, options=options))
        document = run_record(config, parts_evaluation(instance))
        files[-1].write_text(json.dumps(document))
    keys = {result.heads["combined"]["instance_miou"]: result.key for result in read_results(files)}
    assert keys[0.83].options == ()
    assert keys[0.82].options == (("dropout", "0.5"), ("k", "20"))


def test_other_shapes_in_its_layout_are_not_shapenetpart(tmp_path):
    config = to_json(preset_config("psb", "locotrans_dgcnn_partseg"))
    measured = parts_evaluation(0.7, data="shapenetpart:normal", samples=152)
    (tmp_path / "psb.json").write_text(json.dumps(run_record(config, measured)))
    text = report([tmp_path / "psb.json"])
    assert "Tab. 3" not in text
    assert "shapenetpart:normal test, 152 clouds | 70.00 | 66.00 |" in text


def test_segmentation_tells_the_mean_accuracy_the_best_epoch_and_the_rest(tmp_path):
    figures = {"miou": 0.4, "overall_accuracy": 0.8, "class_accuracy": 0.5}
    figures |= {"rotation_agreement": 0.9, "classes": {}}
    lines = [
        {"epoch": epoch, "evaluation": {"split": "test", "miou": miou, "overall_accuracy": other}}
        for epoch, miou, other in ((1, 0.3, 0.7), (2, 0.45, 0.9), (3, 0.4, 0.99))
    ]
    best = best_test_epoch(lines)
    assert best == {"epoch": 2, "miou": 0.45, "of": 3}  # by what networks are compared by
    rest = {"heads": {"combined": {**figures, "miou": 0.35}}, "excluded": 2}
    measured = {"heads": {"combined": figures}, "rotation": "so3", "data": "s3dis"}
    measured |= {"split": "test", "without_excluded": rest}
    config = to_json(preset_config("s3dis_spheres", "dgcnn_semseg"))
    document = run_record(config, measured, best_test_epoch=best)
    (tmp_path / "one.json").write_text(json.dumps(document))
    text = report([tmp_path / "one.json"])
    assert "| s3dis test |  |  | 40.00 | 80.00 | 50.00 | 90.00 | 35.00 without 2 |" in text
    assert "| s3dis test | mIoU | 40.00 | 45.00 | 3 |" in text


def test_six_folds_are_one_figure(tmp_path):
    files = []
    for area in range(1, 7):
        right = 10 * area
        row = {"iou": right / 100, "accuracy": right / 100, "points": 100, "predicted": right}
        figures = {"miou": row["iou"], "overall_accuracy": row["accuracy"], "class_accuracy": 0.5}
        figures |= {"rotation_agreement": 1.0, "classes": {"wall": row}}
        config = preset_config("s3dis_area5", "dgcnn_semseg")
        config = dataclasses.replace(config, data=f"s3dis:area{area}", epochs=9)
        measured = {"heads": {"combined": figures}, "rotation": "so3"}
        measured |= {"data": f"s3dis:area{area}", "split": "test", "samples": 50 + area}
        files.append(tmp_path / f"{area}.json")
        files[-1].write_text(json.dumps(run_record(to_json(config), measured)))
    assert "six folds" not in report(files[:5])
    text = report(files)
    row = (
        "| s3dis_area5, but epochs 9 | dgcnn_semseg |  | float32 | z/so3 | 35.00 | 35.00 | 35.00 |"
    )
    assert f"{row} wall 35.00 |" in text[text.index("## S3DIS, six folds") :]
    whole = []
    for file in files:
        document = json.loads(file.read_text())
        document["evaluation"]["items"] = "scenes"
        whole.append(file.with_stem(f"whole{file.stem}"))
        whole[-1].write_text(json.dumps(document))
    assert "six folds" not in report([*files[:3], *whole[3:]])  # blocks and rooms do not mix
    assert "| s3dis_area5, but epochs 9, whole scenes |" in report([*files, *whole])
    assert "s3dis:area5 test, 55 scenes, every point once |" in report(whole)
    for change in ({"config": {"data": "s3dis:area5"}}, {"evaluation": {"split": "train"}}):
        (name, fields), document = *change.items(), json.loads(files[0].read_text())
        other = tmp_path / "other.json"
        other.write_text(json.dumps({**document, name: {**document[name], **fields}}))
        assert "six folds" not in report([other, *files[1:]])


def test_rows_say_which_rooms_of_s3dis_they_are(tmp_path):
    figures = {"miou": 0.4, "overall_accuracy": 0.8, "class_accuracy": 0.5}
    figures |= {"rotation_agreement": 0.9, "classes": {}}
    some = "S3DIS Area 5 (204/60 of 204/68 rooms)"
    cases = (
        ("s3dis:sphere=1.0", "S3DIS Area 6 (30/10 rooms)", ", sphere=1.0"),
        ("s3dis:area5", some, ""),
    )
    for data, title, more in cases:
        config = to_json(preset_config("s3dis_area5", "dgcnn_semseg"))
        measured = {"heads": {"combined": figures}, "rotation": "so3", "samples": 5000}
        measured |= {"data": data, "data_title": title, "split": "test"}
        (tmp_path / "one.json").write_text(json.dumps(run_record(config, measured)))
        text = report([tmp_path / "one.json"])
        assert f"| z/so3 | {title}{more} test, 5,000 clouds" in text
        assert "Tab. 8" not in text


def test_other_rooms_are_not_area_5(tmp_path):
    config = preset_config("s3dis_area5", "dgcnn_semseg")
    figures = {"miou": 0.4, "overall_accuracy": 0.8, "class_accuracy": 0.5}
    figures |= {"rotation_agreement": 0.9, "classes": {"floor": {"iou": 0.9, "accuracy": 0.9}}}
    for data, clouds, there in (
        ("s3dis:area5", 5000, True),
        ("s3dis:area5", 12, False),  # rooms of one's own, or of the built-in set
        ("s3dis", 5000, False),
        ("s3dis:area6", 5000, False),
    ):
        measured = {"heads": {"combined": figures}, "rotation": "so3", "data": data}
        measured["samples"] = clouds
        document = run_record(to_json(config), {**measured, "split": "test"})
        file = tmp_path / "one.json"
        file.write_text(json.dumps(document))
        text = report([file])
        assert ("Tab. 8" in text) == there
        assert "| floor | 90.00 |" in text


def test_data_of_ones_own_are_told_apart_by_what_they_hold(shelf):
    _, evaluated, files = shelf
    for checksum, accuracy, seed in (
        ("abcdef12", 0.8, 0),
        ("123456ff", 0.6, 0),
        ("abcdef12", 0.7, 1),
    ):
        measured = {**evaluation(accuracy, data="folder"), "data_checksum": checksum}
        evaluated(LIGHT, measured, data="folder", seed=seed)
    held_out = {**evaluation(0.5, data="folder", split="validation"), "data_checksum": "fedcba"}
    evaluated(LIGHT, held_out, data="folder")
    found = {(result.key.data, result.seed) for result in read_results(files)}
    assert ("folder", 0) in found  # which shapes are held out depends on the seed
    found.remove(("folder", 0))
    assert found == {("folder abcdef", 0), ("folder 123456", 0), ("folder abcdef", 1)}
    text = report(files)
    assert "| 75.00" in text
    assert "| 60.00" in text


def test_runs_under_way_are_left_out_with_a_word(shelf, tmp_path, capsys):
    record, _, files = shelf
    record(FULL, 0.91)
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "config.json").write_text("{}")
    main(["report", str(files[0]), str(cut)])
    said = capsys.readouterr()
    assert "91.00" in said.out
    assert f"{cut} is not finished, and left out" in said.err
    with pytest.raises(SystemExit):
        main(["report", str(cut)])
    assert "is not a finished run" in capsys.readouterr().err


def test_files_of_other_commands_are_passed_over_with_a_word(uncut, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("locotrans.training.report.document.network_cost", lambda *_: (1, 2))
    run = tmp_path / "run"
    shutil.copytree(uncut, run)
    wanted, cloud = tmp_path / "certify.json", tmp_path / "cloud.npy"
    few = ("--points", "16", "--shapes", "2", "--radius", "120", "--rotations", "1")
    with suppress(SystemExit):  # the network is hardly trained
        main(["certify", str(run), *few, "--json", str(wanted)])
    np.save(cloud, np.random.default_rng(0).normal(size=(20, 3)))
    main(["predict", str(cloud), "--weights", str(run), "--json", str(run / "predict.json")])
    capsys.readouterr()
    main(["report", str(run)])
    alone = capsys.readouterr().out
    files = [wanted, *(run / f"{name}.json" for name in ("predict", "config", "environment"))]
    main(["report", str(run), *map(str, files)])
    said = capsys.readouterr()
    assert said.out == alone
    for file, command in zip(files, ("certify", "predict", "train", "train"), strict=True):
        wrote = f"{file} is no evaluation (`locotrans {command}` wrote it), and left out"
        assert wrote in said.err.splitlines()
    for content in ("{", "[1]", '{"a": 1}'):
        wanted.write_text(content)
        with pytest.raises(SystemExit):
            main(["report", str(run), str(wanted)])
        assert str(wanted) in capsys.readouterr().err
    with pytest.raises(SystemExit):  # nothing is left
        main(["report", str(files[1])])
    assert str(files[1]) in capsys.readouterr().err
