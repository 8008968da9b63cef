"""The benchmarks run, on tiny settings, and what they compare agrees."""

import copy
import json
import math
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from locotrans import create_model
from locotrans.data import export, load_dataset
from locotrans.training.checkpoint import write_tensors
from locotrans.training.config import parse_options, to_json
from locotrans.training.folder import locked
from locotrans.training.loop import Stopped
from locotrans.training.report import read_results, render

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import alignment
import compare
import fuzz_readers
import index_shapes
import kernel_timing
import learning
import network_timing
import numerics
import precision
import predict_files
import reproduce
import retrieval
import speed
import timing
import trials
from edge_by_edge import EdgeByEdge

pytest.importorskip("triton", reason="Triton is not installed")
import kernel_cases
import launch_cases
import tune

from locotrans.kernels import rpr_plan

CPU = torch.device("cpu")
RECORDS = Path(timing.__file__).parent / "records"
NETWORKS = pytest.mark.parametrize("name", ["locotrans_dgcnn", "locotrans_dgcnn_light"])


@pytest.fixture(autouse=True)
def one_round(monkeypatch):
    monkeypatch.setattr(timing, "ROUNDS", (1, 1))


class Stranger(nn.Module):
    """A network that wants its points as (b, 3, n), and answers with a tuple."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 40)

    def forward(self, points):
        assert points.shape[1] == 3
        return self.linear(points.mean(-1)), points


def mean_of_points(points):
    return points.mean(1)


def stranger():
    return Stranger()


def a_function():
    return mean_of_points


@NETWORKS
@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_edge_by_edge_is_the_same_network(name, training):
    torch.manual_seed(0)
    model = create_model(name, k=6, dropout=0.0).train(training)
    x = timing.clouds(16, 12)
    # with batch statistics at random weights, float32 is 1e-3 from float64 in either of the two
    loose = 1e-3 if training else 1e-4
    for dtype, tolerance in ((torch.float32, loose), (torch.float64, 1e-9)):
        ours, plain = copy.deepcopy(model).to(dtype), EdgeByEdge(copy.deepcopy(model).to(dtype))
        with torch.no_grad():
            outputs = ours(x.to(dtype)), plain(x.to(dtype))
        assert timing.relative_error(outputs[1].logits, outputs[0].logits) < tolerance
        if dtype == torch.float64:
            for field, a in outputs[0]._asdict().items():
                if a is not None and a.is_floating_point():
                    assert timing.relative_error(getattr(outputs[1], field), a) < tolerance, field
            state = plain.network.state_dict()
            for key, value in ours.state_dict().items():
                assert torch.allclose(value, state[key], rtol=tolerance, atol=tolerance), key


def test_edge_by_edge_has_the_same_gradients():
    torch.manual_seed(0)
    ours = create_model("locotrans_dgcnn_light", k=6, dropout=0.0).double()
    plain = EdgeByEdge(copy.deepcopy(ours))
    x = timing.clouds(4, 24).double()
    for model in (ours, plain):
        model(x).logits.square().sum().backward()
    for (key, a), b in zip(ours.named_parameters(), plain.parameters(), strict=True):
        if a.grad is not None:
            scale = a.grad.abs().max().clamp_min(1e-6)
            assert (b.grad - a.grad).abs().max() < 1e-6 * scale, key


def test_edge_by_edge_refuses_other_networks():
    with pytest.raises(ValueError, match="learned frames"):
        EdgeByEdge(create_model("locotrans_dgcnn", frames="handcrafted"))


@pytest.mark.slow
def test_speed_writes_a_table_and_a_record(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(speed, "SEGMENTERS", ["parts, light"])
    out = tmp_path / "speed.json"
    command = f"--device cpu --models light --batches 2 --points 16 --k 4 --out {out} --quick"
    results = speed.main(
        [*command.split(), "--threads", "1", "--only", "train,inference,scaling,parts,large"]
    )
    record = json.loads(out.read_text())
    assert record["results"] == results
    assert record["environment"]["torch"] == torch.__version__
    (inferred,) = results["inference"]
    assert 0 < inferred["from float64"] < 1e-2
    assert 0 < inferred["edge by edge, from float64"] < 1e-2
    assert inferred["other answers"] == 0
    assert inferred["speed-up"] > 0
    (trained,) = results["train"]
    assert trained["speed-up"] > 0
    assert trained["plain GiB"] > 0
    assert {row["along"] for row in results["scaling"]} == {"points", "k", "batch"}
    (parts,) = results["parts"]
    assert parts["network"] in network_timing.SEGMENTERS
    assert parts["shapes/s"] > 0
    assert results["large"][0]["peak_gib"] > 0
    assert "| network | mode |" in capsys.readouterr().out


def test_speed_keeps_what_the_record_holds_of_the_same_commit(tmp_path, monkeypatch):
    out = tmp_path / "speed.json"
    command = f"--device cpu --models light --batches 2 --threads 1 --out {out} --quick".split()
    monkeypatch.setattr(speed, "cpu_training_row", lambda *_: {"ms": 1.0})
    monkeypatch.setattr(speed, "large_row", lambda *_: {"ms": 2.0})
    for section, commit in (("train", "abc"), ("large", "abc"), ("large", "def")):
        speed.main([*command, "--only", section, "--commit", commit])
        kept = {"train", "large"} if (section, commit) == ("large", "abc") else {section}
        assert json.loads(out.read_text())["results"].keys() == kept


def test_a_trial_writes_no_record(tmp_path, monkeypatch, capsys):
    def row(*_):
        assert (
            "large of light on cpu, 1 threads: batches of 2, 256 points" in capsys.readouterr().out
        )
        return {"ms": 1.0}

    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in RECORDS.iterdir()}
    monkeypatch.setattr(speed, "large_row", row)
    speed.main(
        ["--device", "cpu", "--models", "light", "--only", "large", "--threads", "1", "--quick"]
    )
    assert "no record: --out FILE" in capsys.readouterr().out
    fuzz_readers.main(["--mutations=20"])
    assert "no record: --out FILE" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in RECORDS.iterdir()} == before
    assert not list(tmp_path.iterdir())


def test_a_large_cloud_has_a_peak_of_its_own():
    ours = torch.ones(2**28)  # 1 GiB: more than a small pass needs
    args = speed.parse(["--device=cpu", "--k=4", "--threads=1"])
    row = speed.large_row(args, "light", 64, "highest")
    assert speed.most_resident() > 1
    assert 0 <= row["added_gib"] < row["peak_gib"] < 1
    assert (row["network"], row["points"]) == ("light", 64)
    assert row["s"] > 0
    del ours


def test_speed_goes_on_after_a_failure(tmp_path, monkeypatch):
    def fails(*arguments):
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(speed, "cpu_training_row", fails)
    command = ["--only", "train", "--device", "cpu", "--out", str(tmp_path / "speed.json")]
    rows = speed.main([*command, "--threads", "1"])["train"]
    assert [row["error"] for row in rows] == ["out of memory", "out of memory"]
    assert rows[0]["failed"].startswith("full 8")


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--models", "heavy"]])
def test_speed_refuses_unknown_names(arguments, capsys):
    with pytest.raises(SystemExit):
        speed.main(arguments)
    assert "there are" in capsys.readouterr().err


def test_speed_refuses_clouds_of_too_few_points(capsys):
    with pytest.raises(SystemExit):
        speed.main(["--device", "cpu", "--points", "10", "--k", "20"])
    assert "10 points have no 20 neighbours" in capsys.readouterr().err


def test_every_kernel_has_a_floor():
    size = kernel_timing.Size(32, 1024, 20, CPU)
    cases = list(kernel_cases.cases(size))
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        for name, work in case.work.items():
            estimate = sum(p.seconds() for p in case.passes[name])
            assert 0 < work.seconds() < estimate < 0.01, case.name


def test_the_record_says_why_a_kernel_is_far_from_its_floor_and_none_is_below():
    record = json.loads((RECORDS / "speed_nvidia_h200.json").read_text())
    given, rows = record["arguments"], record["results"]["kernels"]
    size = kernel_timing.Size(min(given["batches"]), given["points"], given["k"], CPU)
    work = {case.name: case.work for case in kernel_cases.cases(size)}
    assert {row["kernel"] for row in rows} == work.keys()
    for row in rows:
        floor = 1e6 * work[row["kernel"]][row["pass"]].seconds()
        assert row["floor us"] == pytest.approx(floor), row
        assert row["over floor"] == pytest.approx(row["fused us"] / floor), row
        assert row["over floor"] > 1, row
        assert row["over floor"] <= 3 or row["why over 3"], row


@pytest.mark.slow  # the kernels have tests of their own
def test_kernels_against_their_specification(monkeypatch):
    """By Triton's interpreter, at widths that no network has."""
    monkeypatch.setattr(kernel_timing, "measure", lambda *_: timing.Timing(1.0, 1.0, 1.0))
    size = kernel_timing.Size(2, 6, 2, CPU)
    cases = [
        kernel_cases.knn_case(size, 3),
        kernel_cases.knn_case(size, 5),
        kernel_cases.farthest_case(size),
        kernel_cases.vn_edge_case(size, 3),
        kernel_cases.vn_point_case(size, 3, shared=True),
        kernel_cases.vn_point_case(size, 3, shared=False),
        kernel_cases.vn_point_case(size, 3, shared=True, mean=True),
        kernel_cases.rpr_case(size, 2, 4, 5, refine=True, precision="tf32x3"),
        kernel_cases.rpr_case(size, 2, 4, 5, refine=False, precision="tf32", training=False),
        kernel_cases.pool_case(size, 3),
        kernel_cases.vector_losses_case(size),
        kernel_cases.frames_case(size),
        kernel_cases.edge_max_case(size, 5),
        kernel_cases.edge_max_case(size, 5, frame=True),
        *launch_cases.launch_cases(size),
    ]
    for case in cases:
        rows = kernel_timing.time_case(case, size, 0)
        assert [row["pass"] for row in rows] == list(case.work)
        for row in rows:
            assert 0 <= (row["plain, inputs a unit off"] or 0.0) < 3e-4, row
            assert row["difference"] < case.tolerance(row), row
            assert row["launch"] == "cpu"


GPU = kernel_timing.Size(4, 301, 20, torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*kernel_cases.cases(GPU)], ids=lambda case: case.name)
def test_kernels_of_the_networks_on_a_gpu(case, monkeypatch):
    monkeypatch.setattr(kernel_timing, "measure", lambda *_: timing.Timing(1.0, 1.0, 1.0))
    for row in kernel_timing.time_case(case, GPU, 0):
        assert row["difference"] <= case.tolerance(row), row
        assert row["launch"] == "graph"


def test_settings_to_try_are_put_in_force_and_taken_back():
    size = kernel_timing.Size(32, 1024, 20, CPU)
    names = {case.name for case in kernel_cases.cases(size)}
    choices = list(tune.settings())
    assert len(set(choices)) == len(choices)
    tables = (rpr_plan.LAUNCHES, rpr_plan.FLOAT32_LAUNCHES)
    before = [dict(table) for table in tables]
    for choice in choices:
        assert names.issuperset(choice.cases), choice
        undo = choice.apply()
        for name, value in choice.values:
            if name.endswith("LAUNCHES"):
                assert rpr_plan.Launch(*value[1]) == getattr(rpr_plan, name)[value[0]]
        undo()
        assert [dict(table) for table in tables] == before


@pytest.mark.slow
def test_compare_our_own_with_a_stranger(tmp_path, capsys):
    out = tmp_path / "compare.json"
    sizes = ["--device=cpu", "--batch=2", "--points=24", "--rounds=1", "--threads=1"]
    names = ["locotrans_dgcnn_light", "test_benchmarks:stranger", "--layout-b", "b3n"]
    rows = compare.main([*names, *sizes, "--out", str(out)])
    assert [row["what"] for row in rows] == ["inference"] * 2 + ["training step"] * 2
    assert rows[1]["parameters"] == 160
    assert rows[1]["differs from first by"] > 0
    assert json.loads(out.read_text())["results"] == rows

    rows = compare.main(["test_benchmarks:stranger", "test_benchmarks:a_function",
                         "--layout-a", "b3n", *sizes])  # fmt: skip
    assert [row["what"] for row in rows] == ["inference"] * 2
    assert "differs from first by" not in rows[1]
    assert "no training step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("nothing pointnet", "'nothing' is neither module:function nor one of dgcnn"),
        ("pointnet no_module:x", "cannot import 'no_module'"),
        ("pointnet edge_by_edge:nothing", "edge_by_edge.py has no function 'nothing'"),
        ("pointnet dgcnn --points 8", "--points: dgcnn needs 20 or more"),
        ("edge_by_edge:light pointnet --points 8", "--points: edge_by_edge:light needs 20 or more"),
        ("pointnet pointnet --graph a", "CUDA graphs need a GPU"),
        ("pointnet pointnet --batch 0", "--batch: must be 1 or more"),
        ("pointnet pointnet --device abacus", "device 'abacus' is not available"),
    ],
)
def test_compare_says_what_is_wrong(flags, says, capsys):
    with pytest.raises(SystemExit):
        compare.main(["--device=cpu", *flags.split()])
    assert says in capsys.readouterr().err


def test_compare_networks_for_parts_and_single_shapes(capsys):
    flags = ["--device=cpu", "--points=64", "--batch=1", "--rounds=1", "--threads=1"]
    rows = compare.main(["pointnet", "dgcnn_partseg", *flags])
    assert [row["what"] for row in rows] == ["inference"] * 2
    assert "no training step: batch norms" in capsys.readouterr().out


def test_compare_one_network_in_two_precisions():
    flags = ["--device=cpu", "--points=64", "--batch=2", "--rounds=1", "--threads=1", "--no-train"]
    rows = compare.main(["pointnet", "pointnet", *flags])
    assert rows[1]["differs from first by"] == 0
    rows = compare.main(["pointnet", "pointnet", *flags, "--precision-b", "bf16"])
    assert [row["precision"] for row in rows] == ["float32", "bf16"]
    assert rows[1]["differs from first by"] > 1e-4


def test_numerics(tmp_path):
    out = tmp_path / "numerics.json"
    results = numerics.main(["--quick", "--out", str(out)])
    record = json.loads(out.read_text())
    assert record["results"] == results
    assert record["arguments"]["seeds"]["frames"] == 0
    closed, printed = results["frames"][:2]
    key = "worst error of U'U, float32"
    assert closed[key] < printed[key]
    assert results["tie rule"][0]["share of neighbourhoods changed"] == 0


@pytest.mark.slow
def test_numerics_of_networks():
    (row,) = numerics.rotated_logits(["light"], [0], points=20)
    assert 0 < row["symmetric"] < 1e-2
    rows = numerics.centring(["light"], points=20)
    assert [row["shift"] for row in rows] == [0, 0.2, 50] * 2
    assert rows[1]["moved by the shift"] < 1e-4 < rows[4]["moved by the shift"]
    rows = numerics.tied_clouds(["light"], size=12, side=3)
    assert all(row["moved by a rotation"] < 1e-8 for row in rows if row["precision"] == "float64")
    assert rows[0]["moved by a permutation"] < 1e-8 < rows[1]["moved by a permutation"]


def test_retrieval(tmp_path):
    torch.manual_seed(0)
    paths = []
    for name in ("locotrans_dgcnn_light", "dgcnn"):
        model = create_model(name, 20, k=4)
        facts = {"model": name, "config": to_json(model.config), "num_classes": 20}
        paths.append(tmp_path / f"{name}.safetensors")
        trained = {**facts, "points": 24, "data": "builtin"}
        write_tensors(paths[-1], model.state_dict(), trained)
    out = tmp_path / "retrieval.json"
    rows = retrieval.main([*map(str, paths), "--shapes=40", "--device=cpu", "--out", str(out)])
    record = json.loads(out.read_text())["results"]
    assert record["networks"] == rows
    assert record["shapes"] == 40
    ours, dgcnn = rows
    assert ours["mAP, so3"] == pytest.approx(ours["mAP, none"], abs=0.01)
    assert ours["found again"] > 0.9 > dgcnn["found again"]
    assert all(0 < row[key] < 1 for row in rows for key in row if key.startswith("mAP"))


def test_precision(tmp_path):
    torch.manual_seed(0)
    model = create_model("locotrans_dgcnn_light", 20, k=4)
    model(load_dataset("builtin", "train", points=24, shapes=20).points)  # running statistics
    facts = {"model": "locotrans_dgcnn_light", "config": to_json(model.config), "num_classes": 20}
    path, out = tmp_path / "w.safetensors", tmp_path / "precision.json"
    write_tensors(path, model.state_dict(), {**facts, "points": 24, "data": "builtin"})
    rows = precision.main([str(path), "--shapes=20", "--device=cpu", "--out", str(out)])
    assert json.loads(out.read_text())["results"]["modes"] == rows
    plain, fast = rows
    assert 0 < plain["logits, worst"] != fast["logits, worst"] > 0  # rounded otherwise
    assert max(row["logits, median"] for row in rows) < 1e-4
    assert all(row["logits, median"] <= row["logits, 99%"] <= row["logits, worst"] for row in rows)
    assert plain["agreement, so3"] >= 0.9


def test_learning_goes_on_and_tells_seeds_apart(tmp_path):
    sizes = ["--shapes=40", "--test-shapes=20", "--points=24", "--epochs=1", "--batch-size=20"]
    kept = ["--device=cpu", "--model=dgcnn", "--runs", str(tmp_path / "runs")]
    first = learning.main([*sizes, *kept, "--seeds=1"])
    out = tmp_path / "learning.json"
    runs = learning.main([*sizes, *kept, "--seeds=2", "--out", str(out)])
    assert runs[0] == first[0]  # to the second: it was not trained again
    assert [(run["mode"], run["seed"]) for run in runs] == [("plain", 0), ("plain", 1)]
    assert runs[0]["training loss"] != runs[1]["training loss"]
    results = json.loads(out.read_text())["results"]
    assert results["runs"] == runs
    (row,) = results["modes"]
    answers = [run["combined"] for run in runs]
    assert row["accuracy"] == pytest.approx(sum(answers) / 2)
    assert row["standard error"] == pytest.approx(abs(answers[0] - answers[1]) / 2)


@pytest.mark.parametrize("mode", ["fast", "mixed"])
def test_learning_names_a_mode_that_there_is_not(mode, capsys):
    with pytest.raises(SystemExit):
        learning.main([f"--modes=plain,{mode}", "--device=cpu"])
    assert f"no mode '{mode}' on cpu; there: plain" in capsys.readouterr().err


HELD_OUT = (
    "--data builtin --model dgcnn --shapes 40 --points 24 --epochs 2 --batch-size 16 "
    "--validation 0.2"
)


def test_trials_go_on_and_fail_one_by_one(tmp_path, capsys):
    file, out = tmp_path / "trials.json", tmp_path / "record.json"
    compared = {"plain": "", "wrong": "--scale 0", "mirrored": "--mirror"}
    file.write_text(json.dumps({"common": HELD_OUT, "trials": compared}))
    command = [str(file), "--runs", str(tmp_path / "runs"), "--device=cpu", "--out", str(out)]
    assert trials.main([*command, "--stop-after=0"]) == 3
    assert "no run is finished yet" in capsys.readouterr().out
    with locked(tmp_path / "runs" / "claims" / "mirrored_s0"):  # as by another process
        assert trials.main(command) == 2  # the wrong one
        assert [row["trial"] for row in json.loads(out.read_text())["results"]["runs"]] == ["plain"]
    assert trials.main([*command, "--seeds=2"]) == 2
    results = json.loads(out.read_text())["results"]
    assert [(row["trial"], row["seeds"]) for row in results["trials"]] == [
        ("plain", 2),
        ("mirrored", 2),
    ]
    assert results["flags"]["mirrored"] == f"{HELD_OUT} --mirror"
    losses = {run["training loss"] for run in results["runs"]}
    assert len(losses) == 4  # other seeds and other settings


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"common": "--epochs 1", "trials": {"a": ""}}', "'a' lacks --validation"),
        ('{"common": "--validation 0.2", "trials": {"a/b": ""}}', "'a/b' cannot be the name"),
        ('{"trials": {"a": ""}}', "KeyError('common')"),
        ("{", "it holds"),
    ],
)
def test_trials_refuse_a_file(tmp_path, capsys, text, reason):
    file = tmp_path / "trials.json"
    file.write_text(text)
    with pytest.raises(SystemExit):
        trials.main([str(file), "--runs", str(tmp_path / "runs")])
    message = capsys.readouterr().err
    assert reason in message
    assert str(file) in message


def test_alignment_finds_the_same_points_again():
    torch.manual_seed(0)
    model = create_model("locotrans_dgcnn_light", 4, k=6, vector_embedding=8, embedding=16)
    clouds = load_dataset("builtin", "test", points=96, shapes=20)
    shapes = alignment.chosen_shapes(clouds, 2, seed=0)
    assert {clouds.class_names[clouds.labels[i]] for i in shapes} <= set(alignment.ASYMMETRIC)
    rows = alignment.measure(model.eval(), clouds, shapes, seed=0)
    found = {(row["clouds"], row["answer"]): row for row in rows}
    assert len(found) == 4
    assert found["same points", "refined"]["median"] < 0.1
    assert found["same points", "network"]["shapes"] == 2


def test_predict_on_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(predict_files, "SIZES", (40, 300))
    monkeypatch.setattr(predict_files, "BROKEN", 8)
    out = tmp_path / "files.json"
    flags = ["--files=24", "--points=32", "--model=pointnet", "--device=cpu", "--out", str(out)]
    result = predict_files.main(flags)
    assert json.loads(out.read_text())["results"] == result
    assert (result["rows"], result["failed"], result["readers"]) == (24, 3, 0)
    assert result["reading, processor s"] > 0
    assert all(0 < row["network"] < 1e5 for row in result["MiB"])


def test_index_of_many_shapes(tmp_path, monkeypatch):
    monkeypatch.setattr(index_shapes, "create_model", partial(create_model, k=4))
    out = tmp_path / "index.json"
    flags = ["--shapes=40", "--points=24", "--queries=12", "--device=cpu", "--out", str(out)]
    result = index_shapes.main(flags)
    assert json.loads(out.read_text())["results"] == result
    assert result["shapes"] == 40
    assert result["queries"] == 12
    assert result["found first"] == 1
    assert 0 < result["search, ms"] < 50
    assert result["MiB"][-1]["network"] > 50


def test_fuzzing_leaves_a_record(tmp_path):
    out = tmp_path / "fuzz.json"
    result = fuzz_readers.main(["--mutations=60", "--out", str(out)])
    assert result["refused"] + result["read in spite of damage"] == 60
    assert json.loads(out.read_text())["results"] == result


def test_reasons_go_by_name_and_pass(monkeypatch):
    monkeypatch.setattr(kernel_timing, "measure", lambda *_: timing.Timing(1.0, 1.0, 1.0))
    monkeypatch.setattr(kernel_timing, "REASONS", {"double backward": "twice", "double": "once"})

    def make(size):
        x = size.draw(2)
        return kernel_timing.Problem(lambda: 2 * x, lambda: x + x, [x])

    work = dict.fromkeys(("forward", "backward"), kernel_timing.Work(1.0))
    case = kernel_timing.Case("double 2, float32", make, work, dict.fromkeys(work, ()))
    rows = kernel_timing.time_case(case, kernel_timing.Size(1, 3, 1, CPU), 0)
    assert [row["why over 3"] for row in rows] == ["once", "twice"]


TINY = "--data builtin --shapes 40 --test-shapes 20 --points 24 --epochs 1 --batch-size 20"


def test_reproduce_goes_on_until_every_run_is_measured(tmp_path, monkeypatch, capsys):
    studies = {"modelnet40": {f"s{i}": f"--model dgcnn {TINY} --seed {i}" for i in range(2)}}
    monkeypatch.setattr(reproduce, "STUDIES", studies)
    common = ["modelnet40", "--device=cpu", "--precision=float32", "--out", str(tmp_path / "runs")]
    common += ["--records", str(tmp_path / "records")]
    assert reproduce.main([*common, "--stop-after=0"]) == 3
    assert not (tmp_path / "records").exists()
    assert reproduce.main([*common, "--only=s1"]) == 0
    kept = tmp_path / "records" / "s1"
    some = {"perturb.json", "samplings.json"}
    assert {path.name for path in kept.iterdir()} == {*reproduce.FILES} - some
    assert json.loads((kept / "so3.json").read_text())["rotation"] == "so3"
    capsys.readouterr()
    assert reproduce.main([*common, "--list"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["s0"]


def test_reproduce_goes_past_a_run_that_fails(tmp_path, monkeypatch, capsys):
    studies = {"modelnet40": {"a": f"--model dgcnn {TINY}", "b": f"--model dgcnn {TINY}"}}
    monkeypatch.setattr(reproduce, "STUDIES", studies)
    monkeypatch.setattr(reproduce, "PERTURBED", ("b",))
    monkeypatch.setattr(reproduce, "SAMPLED", ("b",))
    dense = export("hdf5", tmp_path / "dense", train=1, test=2, points=8192)
    common = ["modelnet40", "--device=cpu", "--out", str(tmp_path), "--dense", str(dense)]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "checkpoint.safetensors").write_bytes(b"damaged")
    assert reproduce.main(common) == 2
    assert "failed: a" in capsys.readouterr().err
    assert {*reproduce.FILES} <= {p.name for p in (tmp_path / "b").iterdir()}
    sampled = json.loads((tmp_path / "b" / "samplings.json").read_text())
    assert (sampled["data"], len(sampled["rows"])) == ("hdf5:up=y", 21)
    (tmp_path / "b" / "samplings.json").unlink()  # as if dense clouds had come later
    capsys.readouterr()
    assert reproduce.main([*common, "--list"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["a", "b"]
    assert reproduce.main([*common[:-2], "--list"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["a"]
    (tmp_path / "leaked.txt").write_text("test#0\n")
    excluding = [*common[:-2], "--exclude", str(tmp_path / "leaked.txt"), "--only=b"]
    assert reproduce.main([*excluding, "--list"]) == 0  # to be measured again, without those
    assert capsys.readouterr().out.startswith("b:")
    assert reproduce.main(excluding) == 0
    assert "without_excluded" in (tmp_path / "b" / "so3.json").read_text()
    capsys.readouterr()
    assert reproduce.main([*excluding, "--list"]) == 0
    assert capsys.readouterr().out.strip() == ""


def test_reproduce_stops_at_ctrl_c(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("locotrans.training.train", interrupted)
    with pytest.raises(SystemExit) as end:
        reproduce.main(["psb", "--device=cpu", "--out", str(tmp_path)])
    assert end.value.code == 130


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--only=nothing*", "no run of psb is called 'nothing*'"),
        ("--stop-after=-5", "--stop-after must be at least 0 seconds, got -5"),
        ("--exclude=gone.txt", "--exclude gone.txt: there is no such file"),
        ("--dense=gone", "--dense gone: there is no file gone/test.h5"),
    ],
)
def test_reproduce_refuses(argument, message, capsys):
    with pytest.raises(SystemExit):
        reproduce.main(["psb", argument])
    assert message in capsys.readouterr().err


def asked_of_train(study, monkeypatch):
    """Return the settings of the runs of a study, by name."""
    asked = []

    def train(config, **_):
        asked.append(config)
        raise Stopped

    monkeypatch.setattr("locotrans.training.train", train)
    given = {"root": None, "device": "cpu", "precision": "mixed", "evaluate_every": 10}
    args = Namespace(out=Path("runs"), **given)
    for name, flags in reproduce.STUDIES[study].items():
        assert not reproduce.reproduce(name, flags, args, deadline=math.inf)
    return dict(zip(reproduce.STUDIES[study], asked, strict=True))


@pytest.mark.parametrize("study", reproduce.STUDIES)
def test_runs_that_are_reproduced_are_what_locotrans_trains(study, monkeypatch):
    asked = asked_of_train(study, monkeypatch)
    for name, config in asked.items():
        assert config.preset == reproduce.STUDIES[study][name].split()[1]
        assert name.startswith(config.model)
        assert create_model(config.model, 4, **parse_options(config.model, config.options))
    assert len({str(config) for config in asked.values()}) == len(asked)


def test_names_of_measurements_are_names_of_runs():
    assert {*reproduce.PERTURBED, *reproduce.SAMPLED} <= reproduce.STUDIES["modelnet40"].keys()


def test_ablations_fill_their_tables(tmp_path, monkeypatch):
    figures = {"overall_accuracy": 0.9, "class_accuracy": 0.8, "rotation_agreement": 1.0}
    measured = {"heads": {"combined": figures, "invariant": figures}, "rotation": "so3"}
    measured |= {"data": "modelnet40:hdf5", "split": "test", "samples": 2468}
    trained = {"seconds": 60.0, "environment": {"device": "cpu"}}
    files = []
    for name, config in asked_of_train("modelnet40", monkeypatch).items():
        if config.epochs == 60:
            files.append(tmp_path / f"{name}.json")
            record = {"config": to_json(config), "evaluation": measured, **trained}
            files[-1].write_text(json.dumps(record))
    text = render(read_results(files)).split("but epochs 60")[1]
    for table in ("4", "5", "6", "10"):
        rows = text.split(f"### Tab. {table}:")[1].split("\n\n")[1].splitlines()[2:]
        assert rows
        for row in rows:
            assert "90.00" in row.split("|")[-2], row  # the light network's
