"""A page of pictures of shapes, one self-contained HTML file."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import torch

from locotrans.pictures import cloud_png
from locotrans.training.predict.samples import load_sample

STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; color: #22303c; background: #f4f6f8; margin: 2rem; }
h1 { font-size: 1.2rem; } h2 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
section { display: flex; flex-wrap: wrap; gap: .8rem; }
figure { margin: 0; padding: .5rem; width: 11rem; background: white; border-radius: .4rem; }
figure.query { outline: 2px solid #1f77b4; }
img { width: 100%; display: block; } .gone { height: 11rem; color: #d62728; font-size: .8rem; }
figcaption { overflow-wrap: anywhere; font-size: .8rem; } b { display: block; }
"""


class Card(NamedTuple):
    """A shape, and the line above its name."""

    path: Path
    note: str


class Row(NamedTuple):
    """Shapes that belong together."""

    title: str
    cards: list[Card]


def page_of_shapes(title: str, folder: Path, rows: Sequence[Row], points: int) -> str:
    """Return the page; files are shown as they lie, by at most 1,024 points.

    Args:
        title: of the page.
        folder: names are relative to it where they can be.
        rows: of shapes; one without a title begins with the query.
        points: points chosen of each file.
    """
    body = []
    for row in rows:
        body.append(f"<h2>{_text(row.title)}</h2>" if row.title else "")
        figures = [
            _figure(card, folder, min(points, 1024), not row.title and number == 0)
            for number, card in enumerate(row.cards)
        ]
        body.append(f"<section>{''.join(figures)}</section>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{_text(title)}</title><style>{STYLE}</style><h1>{_text(title)}</h1>"
        f"{''.join(body)}</html>\n"
    )


def _figure(card: Card, folder: Path, points: int, query: bool) -> str:
    sample = load_sample(card.path, points)
    if sample.points is None:
        picture = f'<div class="gone">{_text(sample.error or "")}</div>'
    else:
        data = b64encode(cloud_png(torch.from_numpy(sample.points))).decode()
        picture = f'<img alt="" src="data:image/png;base64,{data}">'
    path = card.path.relative_to(folder) if card.path.is_relative_to(folder) else card.path
    kind = ' class="query"' if query else ""
    caption = f"<b>{_text(card.note)}</b>{_text(str(path))}"
    return f"<figure{kind}>{picture}<figcaption>{caption}</figcaption></figure>"


def _text(text: str) -> str:
    return escape(text.encode(errors="replace").decode())
