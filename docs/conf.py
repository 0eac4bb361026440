"""Sphinx: MyST pages, executed notebooks, the API from docstrings."""

from docutils import nodes

from hybridctl import __version__
from hybridctl.page.formula import formula_html

project = "hybridctl"
author = "The hybridctl authors"
release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "jupyter_execute"]
html_theme = "furo"
html_title = f"hybridctl {release}"
html_math_renderer = "drawn"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"ArrayLike": "ArrayLike", "Array": "Array"}
napoleon_google_docstring = True
suppress_warnings = ["myst.header"]


def bars_are_absolute_values(app, what, name, obj, options, lines):
    """In docstrings |x| is the size of x, not a substitution."""
    lines[:] = [
        line if "math:" in line or "\\" in line else line.replace("|", r"\|") for line in lines
    ]


def write_formula(translator, node):
    """A formula as a drawing, within a line or below it: the site needs no network."""
    block = isinstance(node, nodes.math_block)
    drawn = formula_html(node.astext(), block=block)
    translator.body.append(f'<div style="overflow-x: auto">{drawn}</div>' if block else drawn)
    raise nodes.SkipNode


def setup(app):
    """Connect what is above."""
    both = (write_formula, None)
    app.add_html_math_renderer("drawn", inline_renderers=both, block_renderers=both)
    app.connect("autodoc-process-docstring", bars_are_absolute_values)
