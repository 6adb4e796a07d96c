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

extensions = ["breathe", "myst_parser", "declarations"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]  # classes of tables

breathe_projects = {"dtensor": str(HERE.parents[1] / "build/docs/xml")}
breathe_default_project = "dtensor"
primary_domain = "cpp"
highlight_language = "text"

smartquotes = False
nitpicky = True
# Names of LibTorch and the standard library, and the namespaces.
nitpick_ignore_regex = [
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
