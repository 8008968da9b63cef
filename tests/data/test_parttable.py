"""Parts of ShapeNetPart have words for names; files from before have numbers."""

import torch

from locotrans.data import CloudSet
from locotrans.data.parttable import (
    NUMBERED_PARTS,
    OFFICIAL_PARTS,
    SHAPENET,
    read_table_of_parts,
    with_words,
)


def test_official_parts_have_words_by_number(tmp_path):
    (tmp_path / "names.txt").write_text("Chair\t03001627\nMug\t03797390\n")  # some are enough
    table = read_table_of_parts(tmp_path, "names.txt")
    assert table.official
    assert len(table.part_names) == len(set(table.part_names)) == 50
    assert table.part_names[12:16] == ("Chair/back", "Chair/seat", "Chair/leg", "Chair/arm")
    assert table.parts[table.categories.index("Mug")] == (36, 37)
    for row, (category, *_) in enumerate(SHAPENET):
        own = [name.startswith(f"{category}/") for name in table.part_names]
        assert table.allowed[row].tolist() == own


def test_names_from_before_become_words_and_others_stay():
    before = list(NUMBERED_PARTS)
    assert before[11:14] == ["Car/4", "Chair/1", "Chair/2"]
    assert with_words(before) == list(OFFICIAL_PARTS)
    for names in (before[:-1], ["Chair/1", "Chair/2"], list(OFFICIAL_PARTS), []):
        assert with_words(names) == names


def test_checksums_are_those_of_the_names_from_before():
    """So checkpoints and records of the same data are still known to be of them."""
    points, labels, parts = torch.rand(1, 8, 3), torch.tensor([4]), torch.full((1, 8), 12)
    categories = tuple(name for name, *_ in SHAPENET)
    sums = {
        CloudSet(
            "x", "test", "y", points, labels, categories, parts=parts, part_names=names
        ).checksum
        for names in (OFFICIAL_PARTS, NUMBERED_PARTS)
    }
    assert len(sums) == 1
