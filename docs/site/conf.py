# SPDX-License-Identifier: BSD-3-Clause
"""Configuration of Sphinx for the site. Every warning is an error."""
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
version_text = (HERE.parents[1] / "dtensor/version.h").read_text()

project = "dtensor"
author = "the dtensor authors"
version = release = ".".join(re.findall(r"#define \w+ (\d+)", version_text))

extensions = ["breathe", "myst_parser", "sphinx.ext.napoleon", "autoapi.extension",
              "declarations", "python_reference"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]  # classes of tables

breathe_projects = {"dtensor": str(HERE.parents[1] / "build/docs/xml")}
breathe_default_project = "dtensor"
# The Python package. Its page has a directive for each name (python_reference.py).
autoapi_dirs = [str(HERE.parents[1] / "python/dtensor")]
autoapi_file_patterns = ["*.py", "*.pyi"]
autoapi_options = ["members"]
autoapi_generate_api_docs = False
autoapi_add_toctree_entry = False
add_module_names = False
python_maximum_signature_line_length = 80

primary_domain = "cpp"
highlight_language = "text"

smartquotes = False
nitpicky = True
# Names of PyTorch, LibTorch and the standard libraries, and the namespaces.
nitpick_ignore_regex = [
    ("py:.*", r"torch\..*|[A-Z]\w+|torch"),
    ("cpp:identifier", r"(at|c10|c10d|torch|detail)(::.*)?|u?int\d+_t|size_t|Contents"),
    ("cpp:identifier", r"dtensor(::(torch_2_0|testing|detail.*))?"),
]

html_theme = "furo"
html_title = f"dtensor {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
