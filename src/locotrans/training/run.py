"""A run: its folder, model, optimiser and data, and where it stands."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from locotrans.data.transforms import uniform
from locotrans.distributed import process, processes
from locotrans.training.augment import augment, draw_labelled, even_versions
from locotrans.training.average import WeightAverage
from locotrans.training.checkpoint import (
    load_optimizer,
    load_state,
    optimizer_tensors,
    read_tensors,
    write_tensors,
)
from locotrans.training.config import (
    EVENING,
    INITIAL_WEIGHTS,
    TrainConfig,
    derive_seed,
    parse_options,
    portable,
    to_json,
)
from locotrans.training.evening import evened
from locotrans.training.folder import CHECKPOINT, WEIGHTS
from locotrans.training.held_out import load_data
from locotrans.training.record import environment, find_device, write_atomically, write_json
from locotrans.training.start_from import described, load_start, take_over
from locotrans.training.step import Step, frequency_offsets
from locotrans.training.tasks import (
    build_model,
    check_points_of,
    given,
    is_segmenter,
    name_parts,
    targets,
    typical_radius,
)


class Run:
    """Everything that a training loop works on.

    Building it changes nothing on disk, so that bad input leaves no trace.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.folder = config.out
        self.device = find_device(config.device)
        if config.precision == "mixed" and self.device.type != "cuda":
            raise ValueError(
                f"precision mixed is for training on a GPU, and this would be on {self.device}; "
                "take --precision float32, or --device cuda where there is one"
            )
        options = parse_options(config.model, config.options)
        start = None
        if config.start_from is not None and not self.checkpoint_path.exists():
            start = load_start(config.start_from)
        self.train_set, self.held_out = name_parts(config.model, *load_data(config))
        if config.batch_size % processes():
            raise ValueError(
                f"batch_size {config.batch_size} must be a multiple of the {processes()} processes"
            )
        self.steps_per_epoch = len(self.train_set) // config.batch_size
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"batch_size {config.batch_size} exceeds the {len(self.train_set)} training "
                "shapes; lower it"
            )
        torch.manual_seed(derive_seed(config.seed, INITIAL_WEIGHTS))
        model = build_model(config.model, self.train_set, options)
        if is_segmenter(model):
            check_points_of(model, self.held_out)
            for setting in ("resample", "even"):
                if getattr(config, setting):
                    raise ValueError(
                        f"{setting} moves points, and {config.model} learns their labels, which "
                        "belong to their places; leave it out"
                    )
        self.start: dict[str, Any] | None = None  # what is known of the weights that it began with
        if start is not None:
            self.start = take_over(model, config.model, start, self.train_set)
        self.model = model.to(self.device)
        self.average = WeightAverage(model, config.averaging) if config.averaging > 0 else None
        self.points = self.train_set.points.to(self.device)
        self.labels = targets(model, self.train_set).to(self.device)
        offsets = None
        if config.balance > 0:
            classes: Any = model.num_classes
            offsets = frequency_offsets(self.labels, classes, config.balance)
        self.take_step = Step(self.model, config, self.device, offsets)
        extra = given(model, self.train_set)
        self.given = {name: x.to(self.device) for name, x in extra.items()}
        with torch.inference_mode():
            first = {name: x[:1] for name, x in self.given.items()}
            if "colors" in first:
                first["colors"] = first["colors"][:, : config.points]
            cloud = self.points[:1, : config.points]
            self.model.eval()(cloud, **first)  # what the model refuses is refused here
        self.model.train()
        self.versions: Float[Tensor, "v s n 3"] | None = None  # of the clouds, evened out
        if config.even:
            stream = torch.Generator(self.device).manual_seed(derive_seed(config.seed, EVENING))
            self.versions = even_versions(self.points, config.resample, generator=stream)
            self.held_out = evened(self.held_out, config.points, self.device)
        self.radius = typical_radius(self.train_set)
        self.environment = environment(self.device)
        self.elsewhere: list[dict[str, Any]] = []  # other environments that parts of it ran in
        self.step = 0  # steps done
        self.seconds = 0.0  # over all parts of the run
        self.sums: dict[str, Tensor] = {}  # figures, summed over the current epoch's steps
        self.first_bad_step = torch.tensor(-1, device=self.device)

    def show(
        self, batch: Int[Tensor, " b"], seed: int
    ) -> tuple[Float[Tensor, "b2 m 3"], Int[Tensor, "b2 *m"], dict[str, Tensor]]:
        """Return what a step is given of some shapes: clouds, labels, and what else is known.

        Of several processes, each augments the whole batch, as one alone would, and takes its
        share.
        """
        config = self.config
        generator = torch.Generator(self.device).manual_seed(seed)
        points, labels = self._clouds(batch, generator), self.labels[batch]
        given = {name: x[batch] for name, x in self.given.items()}
        if labels.dim() > 1:  # what belongs to the points goes where they go
            points, labels, given = draw_labelled(points, labels, given, config, generator)
            config = replace(config, draw_from=None, shuffle=False)
        centred = self.take_step.placing
        points = augment(points, config, self.train_set.up, generator, centred=centred)
        mine = slice(process(), None, processes())
        given = {name: x[mine] for name, x in given.items()}
        return points[mine].contiguous(), labels[mine], given

    def _clouds(
        self, batch: Int[Tensor, " b"], generator: torch.Generator
    ) -> Float[Tensor, "b n 3"]:
        """Return the shapes as they are, or each in one of its versions at random."""
        if self.versions is None:
            return self.points[batch]
        draws = uniform(len(batch), generator=generator).to(self.device)
        return self.versions[(draws * len(self.versions)).long(), batch]

    @property
    def result(self) -> nn.Module:
        """The network that is evaluated and stored: the averaged one where there is one."""
        return self.model if self.average is None else self.average.model

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, for a record: of given weights, what they are and not where they lay."""
        begun = None if self.start is None else described(self.start)
        return {**portable(self.config), "start_from": begun}

    @property
    def metrics_path(self) -> Path:
        """The file with a line per epoch."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        """The latest checkpoint."""
        return self.folder / CHECKPOINT

    def open_folder(self) -> None:
        """Write what the folder starts with, or go to its checkpoint and cut the metrics to that.

        Of several processes, the first writes and the others only go to the checkpoint.
        """
        if self.checkpoint_path.exists():
            self._load_checkpoint()
        if process() > 0:
            return
        if not (self.checkpoint_path.exists() and (self.folder / "config.json").exists()):
            root = self.config.root and self.config.root.absolute()  # found from anywhere
            write_json(self.folder / "config.json", to_json(replace(self.config, root=root)))
        write_json(self.folder / "environment.json", self.environment)
        if self.metrics_path.exists():
            lines = self.metrics_path.read_bytes().splitlines(keepends=True)
            epochs = self.step // self.steps_per_epoch
            write_atomically(self.metrics_path, b"".join(lines[:epochs]))

    def add(self, figures: dict[str, Tensor]) -> None:
        """Count a step and add its figures to the sums, without waiting for the device."""
        self.sums = {  # in the order of the figures, which a checkpoint does not keep
            name: self.sums[name] + value if name in self.sums else value
            for name, value in figures.items()
        }
        bad = ~figures["total"].isfinite() & (self.first_bad_step < 0)
        now = torch.full_like(self.first_bad_step, self.step)  # made on the device, not copied
        self.first_bad_step = torch.where(bad, now, self.first_bad_step)
        if self.average is not None:
            self.average.update(self.step)
        self.step += 1

    def check_finite(self) -> None:
        """Stop the run if a loss or a weight is not finite; this waits for the device."""
        step = int(self.first_bad_step.item())
        weights = torch.stack([p.detach().isfinite().all() for p in self.model.parameters()])
        if step < 0 and not weights.all():
            step = self.step - 1
        if step >= 0:
            kept = (
                "the checkpoint from before is kept"
                if self.checkpoint_path.exists()
                else "there was no checkpoint yet"
            )
            raise ValueError(
                f"the loss or a weight stopped being finite in step {step} of {self.folder}; "
                f"{kept}. Lower --lr, or look at the data"
            )

    def save_checkpoint(self) -> None:
        """Write the checkpoint, unless the numbers have gone bad."""
        self.check_finite()
        if process() > 0:
            return
        tensors = {
            **self.model.state_dict(),
            **optimizer_tensors(self.model, self.take_step.optimizer),
            **({} if self.average is None else self.average.tensors()),
            **{f"epoch/{name}": value for name, value in self.sums.items()},
        }
        environments = [*self.elsewhere, self.environment]
        metadata = {**self._metadata(), "environments": environments}
        write_tensors(self.checkpoint_path, tensors, metadata)

    def save_weights(self) -> None:
        """Write the weights of the result."""
        path = self.folder / WEIGHTS
        write_tensors(path, self.result.state_dict(), self._metadata())

    def _load_checkpoint(self) -> None:
        path = self.checkpoint_path
        tensors, metadata = read_tensors(path)
        if metadata["data_checksum"] != self.train_set.source:
            raise ValueError(
                f"{path} was trained on other data: {self.config.data!r} has changed since; "
                "restore it, or choose another --out"
            )
        load_state(self.model, tensors, path)
        load_optimizer(self.model, self.take_step.optimizer, tensors)
        if self.average is not None:
            self.average.load(tensors)
        self.step, self.seconds = metadata["step"], metadata["seconds"]
        self.start = metadata.get("start")
        here = {**self.environment, "date": None}
        earlier = metadata.get("environments", [])
        self.elsewhere = [place for place in earlier if {**place, "date": None} != here]
        for name, value in tensors.items():
            if name.startswith("epoch/"):
                self.sums[name.removeprefix("epoch/")] = value.to(self.device, copy=True)

    def _metadata(self) -> dict[str, Any]:
        """Describe the weights, so that the file alone is enough to use them."""
        data = self.train_set
        return {
            "model": self.config.model,
            "config": to_json(self.model.config),
            "num_classes": self.model.num_classes,
            "class_names": list(data.class_names),
            "part_names": list(data.part_names),
            "radius": self.radius,
            "data": data.name,
            "data_checksum": data.source,
            "points": self.config.points,
            "choice": "even" if self.config.even else "random",
            "up": data.up,
            "rotation": self.config.rotation,
            "seed": self.config.seed,
            "epochs": self.config.epochs,
            "step": self.step,
            "seconds": self.seconds,
            "settings": self.settings,
            **({} if self.start is None else {"start": self.start}),
        }
