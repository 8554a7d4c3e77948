"""mkdocs' hooks: the documents outside docs/, the examples and the generated pages join the site.

Nothing is copied in the repository. Not here: the place of a page (links.py), pages that are
generated from the code (reference.py).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from mkdocs.structure.files import File

from docs_site import links, reference


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not files of docs/."""
    for path in links.documents():
        if not path.startswith("docs/"):
            _add(files, config, links.page_of(path), _text(path))
    for path in links.examples():
        title = path.rpartition("/")[2]
        code = f"# {title}\n\n```python\n{_text(path)}```\n"
        _add(files, config, links.page_of(path), code)
    _add(files, config, "CLI.md", reference.command_line())
    _add(files, config, "API.md", reference.python_api())
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite a document's links for the site."""
    sources = {links.page_of(path): path for path in links.documents()}
    source = sources.get(page.file.src_uri)
    return links.rewrite(markdown, source) if source else markdown


def on_serve(server: Any, config: Any, builder: Any) -> Any:
    """Rebuild the site also after a change outside docs/."""
    for path in (*links.documents(), *links.examples()):
        server.watch(str(links.ROOT / path))
    return server


def _text(path: str) -> str:
    return (links.ROOT / path).read_text()


def _add(files: Any, config: Any, page: str, content: str) -> None:
    files.append(File.generated(config, page, content=content))
