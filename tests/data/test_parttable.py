"""Parts of ShapeNetPart have words for names; files from before have numbers."""

from locotrans.data.parttable import OFFICIAL_PARTS, SHAPENET, read_table_of_parts, with_words


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
    counts = [len(parts.split()) for *_, parts in SHAPENET]
    before = [
        f"{row[0]}/{i + 1}" for row, n in zip(SHAPENET, counts, strict=True) for i in range(n)
    ]
    assert with_words(before) == list(OFFICIAL_PARTS)
    for names in (before[:-1], ["Chair/1", "Chair/2"], list(OFFICIAL_PARTS), []):
        assert with_words(names) == names
