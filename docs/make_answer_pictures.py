"""Draw files as they lie and in a random pose, with what a classifier says of each.

python docs/make_answer_pictures.py answers.png chair.off scan.pcd
python docs/make_answer_pictures.py answers.png *.ply --weights runs/own
"""

import argparse
from pathlib import Path

import torch

from locotrans.data import rotate
from locotrans.geometry import random_rotations
from locotrans.pictures import draw_cloud, new_figure, save_figure
from locotrans.training.predict.progress import load_inference


def main(argv=None):
    """Draw a column for each file: above its own pose, below a random one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument(
        "--weights", default="locotrans_dgcnn_light", help="run folder, file or name"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the pose")
    args = parser.parse_args(argv)
    inference, facts = load_inference(args.weights, None, 0, 32, "cpu", 0, None)
    R = random_rotations(1, generator=torch.Generator().manual_seed(args.seed))[0]

    @torch.inference_mode()  # a thread of its own calls it
    def ask(clouds):
        both = [clouds, rotate(clouds, R.expand(len(clouds), 3, 3))]
        return torch.stack(both, 1), torch.stack([inference.model(x).logits for x in both], 1)

    columns = []
    for samples, parts in inference.run(args.files, ask):
        answers = (answer for part in parts for answer in zip(*part, strict=True))
        for sample in samples:
            if sample.error is not None:
                raise SystemExit(f"{sample.path}: {sample.error}")
            columns.append(next(answers))
    figure, panels = new_figure(2, len(columns), 1.7, 1.6, above=0.02, below=0.3, title=0.0)
    for column, (poses, logits) in enumerate(columns):
        for row, (points, said) in enumerate(zip(poses, logits, strict=True)):
            axes = panels[row * len(columns) + column]
            draw_cloud(axes, points, size=5.0)
            share, label = said.softmax(-1).max(-1)
            text = f"{facts['class_names'][int(label)]}, {share:.0%}"
            here = {"ha": "center", "va": "top", "transform": axes.transAxes}
            axes.text(0.5, -0.02, text, fontsize=10, **here)
    save_figure(figure, args.out)


if __name__ == "__main__":
    main()
