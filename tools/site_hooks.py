"""Hooks of MkDocs for `make site`: files outside of docs/ that the pages link to become part of the site.

On GitHub a link such as ``../../examples/sdp/spark-pipeline.yml`` leads out of docs/. The site has the linked file at
its path in the repository, and the pages of the root (`ARCHITECTURE.md`) as pages of its own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs/"
#: pages of the root that are pages of the site
ROOT_PAGES = ("ARCHITECTURE.md", "STYLE.md", "CHANGELOG.md")
#: the target of a relative link, without its anchor
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and the files that a page links to."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for page in files.documentation_pages():
        for target in _LINK.findall(page.content_string):
            path = _repository_path(page.src_uri, target)
            if not path.startswith(DOCS) and (ROOT / path).is_file() and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with links that lead to the same files in the site."""
    source = page.file.src_uri

    def relink(link: re.Match[str]) -> str:
        path = _repository_path(source, link[1]).removeprefix(DOCS)
        return os.path.relpath(path, os.path.dirname(source) or ".")

    return _LINK.sub(relink, markdown)


def _repository_path(source: str, target: str) -> str:
    """Return the path in the repository of a link's target. `source` is the path of the page in the site."""
    page = source if source in ROOT_PAGES else DOCS + source
    return os.path.normpath(os.path.join(os.path.dirname(page), target))
