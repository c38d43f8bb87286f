"""What every test shares: properties are tried without a clock, since a busy machine is no defect."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("trainwright", deadline=None)
settings.load_profile("trainwright")
