"""Whether Horovod is here, which is built from its source: tests of it say how when it is not."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

HAS_HOROVOD = find_spec("horovod") is not None
needs_horovod = pytest.mark.skipif(not HAS_HOROVOD, reason="no Horovod: make setup-horovod")
