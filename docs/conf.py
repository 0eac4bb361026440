"""Sphinx: MyST pages, executed notebooks, the API from docstrings."""

import re

from docutils import nodes

from hybridctl import __version__
from hybridctl.app.page.fragments import render_formula

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
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["dollarmath", "html_image"]
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
napoleon_use_ivar = True  # attributes of records are members already: one description of each
suppress_warnings = ["myst.header"]


def bars_are_absolute_values(app, what, name, obj, options, lines):
    """In docstrings |x| is the size of x, not a substitution."""
    lines[:] = [
        line if "math:" in line or "\\" in line else line.replace("|", r"\|") for line in lines
    ]


def properties_are_described(app, what, name, obj, options, lines):
    """What stands before a colon in the docstring of a property is no type, as napoleon has it."""
    for k, line in enumerate(lines):
        if what == "property" and line.startswith(":type: "):
            lines[0] = f"{line.removeprefix(':type: ')}: {lines[0]}"
            del lines[k]
            break


def aliases_by_name(app, what, name, obj, options, signature, returned):
    """In signatures `Array` is called so."""
    if signature is None and returned is None:
        return None
    both = (signature, returned)
    return tuple(text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in both)


def write_formula(translator, node):
    """A formula as a drawing, within a line or below it: the site needs no network."""
    block = isinstance(node, nodes.math_block)
    drawn = render_formula(node.astext(), block=block)
    translator.body.append(f'<div style="overflow-x: auto">{drawn}</div>' if block else drawn)
    raise nodes.SkipNode


def setup(app):
    """Connect what is above."""
    both = (write_formula, None)
    app.add_html_math_renderer("drawn", inline_renderers=both, block_renderers=both)
    app.connect("autodoc-process-docstring", properties_are_described, priority=600)
    app.connect("autodoc-process-docstring", bars_are_absolute_values)
    app.connect("autodoc-process-signature", aliases_by_name)
