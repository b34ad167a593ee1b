"""Sphinx's settings for the book; `python -m docs.book.build` makes its sources and runs it."""

from __future__ import annotations

from docutils.utils.math.latex2mathml import tex2mathml

project = "PACI Lab"
copyright = "PACI Lab contributors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["assets"]

html_theme = "furo"
html_title = "PACI Lab"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_show_sourcelink = html_copy_source = False  # the sources are notebooks full of figures

# The notebooks come with their outputs, in which widgets are pictures already: nothing has to be fetched for them.
nb_execution_mode = "off"
nb_ipywidgets_js = {}
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

smartquotes = False  # or --option would become a dash
default_role = "literal"  # in docstrings, `name` is code
napoleon_custom_sections = [("Keys", "params_style")]
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True

# A link that leads nowhere is an error. Types in signatures are not: torch's and numpy's pages are not in the book.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r".*")]
suppress_warnings = ["config.cache"]  # `setup` below is a function, which Sphinx cannot store: nothing hangs on it


def setup(app):
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.config.html_math_renderer = "mathml"
    app.connect("builder-inited", _add_assets)
    app.connect("html-page-context", _add_scripts)


def _add_assets(app):
    app.config.html_static_path.append(str(app.srcdir / "assets"))


def _add_scripts(app, page, template, context, doctree):
    if "paci-plot" in context.get("body", ""):  # plotly has 5 MB
        for name in ("plotly.min.js", "palette.js", "book.js"):
            app.add_js_file(name, loading_method="defer")


# Browsers draw MathML themselves; MathJax would be fetched from the network.
def _inline(writer, node):
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise _skip()


def _block(writer, node):
    writer.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise _skip()


def _skip():
    from docutils.nodes import SkipNode

    return SkipNode()
