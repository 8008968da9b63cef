"""The documentation site: `sphinx-build -W docs build/docs`."""

import importlib.metadata
import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

project = "locotrans"
author = "the locotrans authors"
release = importlib.metadata.version("locotrans")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["build"]

html_theme = "furo"
html_title = "locotrans"
html_math_renderer = "mathml"
html_copy_source = False

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
NOTE = re.compile(r"(Symmetry|Gradient|Degenerate|Differs): (.*)")  # what our docstrings end with


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="math">{formula}</div>\n')
    raise nodes.SkipNode


def _notes(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make a paragraph of each note at the end of a docstring."""
    out: list[str] = []
    inside = False
    for line in lines:
        if match := NOTE.fullmatch(line):
            out += ["", f"*{match[1]}*: {match[2]}"]
            inside = True
        elif inside and line.startswith("    "):
            out.append(line.strip())
        else:
            inside = False
            out.append(line)
    lines[:] = out


def setup(app: Any) -> None:
    """Let formulas be MathML, which browsers draw by themselves: no script, no network."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-process-docstring", _notes, priority=1)
