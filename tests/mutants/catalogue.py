"""All planted faults."""

from __future__ import annotations

from .emitter_faults import EMITTERS
from .frontend_faults import FRONTEND
from .pass_faults import PASSES
from .planting import Mutant
from .runtime_faults import RUNTIME
from .schedule_faults import SCHEDULES

MUTANTS: tuple[Mutant, ...] = (*FRONTEND, *PASSES, *SCHEDULES, *EMITTERS, *RUNTIME)
