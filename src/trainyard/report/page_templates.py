"""What every page is made with: the templates of this folder, with quantities and addresses as their filters."""

from __future__ import annotations

import functools
import os
import sys
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from trainyard.report.drawings import process_counts
from trainyard.settings import quantities

if TYPE_CHECKING:
    import jinja2
    from jinja2.bccache import Bucket

_FILTERS = ("as_text", "count", "counted", "duration", "moment", "number", "percentage")


@functools.lru_cache(maxsize=8)
def page_templates(folder: Path) -> jinja2.Environment:
    """Return the templates of pages that lie in a folder: HTML is escaped, and an undefined name is an error."""
    import jinja2  # takes 0.1 s to import, and only pages need it

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        bytecode_cache=_compiled_templates(),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update({name: getattr(quantities, name) for name in _FILTERS})
    templates.filters["processes"] = process_counts
    templates.filters["link"] = lambda path: _address(str(path), folder)
    return templates


def _compiled_templates() -> jinja2.BytecodeCache:
    """Return what keeps compiled templates, beside the compiled modules: compiling takes longer than making a page."""
    import jinja2

    class Cache(jinja2.FileSystemBytecodeCache):
        def dump_bytecode(self, bucket: Bucket) -> None:
            if not sys.dont_write_bytecode:
                with suppress(OSError):  # it only saves time
                    super().dump_bytecode(bucket)

    folder = Path(cache_from_source(__file__)).parent
    # Another version of Python or Jinja compiles to something else.
    return Cache(str(folder), f"%s.{sys.implementation.cache_tag}.jinja-{jinja2.__version__}")


def _address(path: str, folder: Path) -> str:
    """Return the address of a file as seen from a page in the folder; never a scheme, because its colon is quoted."""
    relative = os.path.relpath(path, folder) if os.path.isabs(path) else path
    return quote(relative.replace(os.sep, "/"), safe="/")
