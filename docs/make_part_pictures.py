"""Draw shapes in their true parts and in those that a network says in four poses (Fig. 4).

    python docs/make_part_pictures.py runs/parts parts.png
    python docs/make_part_pictures.py runs/parts parts.png --data shapenetpart --root DIR \
        --categories Airplane Chair Car Pistol
"""

import argparse
from pathlib import Path

import torch

from locotrans.data import load_dataset, rotate
from locotrans.geometry import random_rotations
from locotrans.pictures import labels_figure, save_figure
from locotrans.training.record import find_device
from locotrans.training.segment import load_segmenter

POSES = 4


def main(argv=None):
    """Draw the first test shape of each category."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--shapes", type=int)
    categories = ["airplane", "chair", "lamp_up", "mug"]
    parser.add_argument("--categories", nargs="+", default=categories)
    parser.add_argument("--shape", type=int, default=0, help="which shape of each category")
    args = parser.parse_args(argv)
    network = load_segmenter(args.weights, device=find_device("auto"))
    points = network.points
    data = load_dataset(args.data, "test", root=args.root, points=points, shapes=args.shapes)
    if data.part_names != network.names:
        raise ValueError(f"{args.weights} was trained for other parts than {args.data} has")
    rotations = random_rotations(POSES, generator=torch.Generator().manual_seed(0))
    clouds, labels = [], []
    for name in args.categories:
        category = network.category(name)
        row = int((data.labels == category).nonzero()[args.shape, 0])
        poses = rotate(data.points[row].expand(POSES, -1, -1), rotations)
        said = [network.segment(pose.numpy(), None, category).argmax(1) for pose in poses]
        x, y, z = data.points[row].unbind(-1)  # the truth as it stands, with up along z
        stored = torch.stack([x, y, z] if data.up == "z" else [x, -z, y], dim=-1)
        clouds.append([stored, *poses])
        labels.append([data.parts[row], *map(torch.from_numpy, said)])
    titles = ["truth", *(f"pose {number}" for number in range(1, POSES + 1))]
    save_figure(labels_figure(clouds, labels, data.part_names, titles), args.out)


if __name__ == "__main__":
    main()
