"""The checker: names, types, shapes and ranges. The door is `check_source`; the parts derive from one another:

core (state) <- emit <- convert <- index <- infer <- reduce <- shapes <- products <- arguments <- builtins <- calls
<- exprs <- definitions <- loops <- statements <- declarations <- program.
"""

from loopfuse.frontend.check.program import check_script, check_source

__all__ = ["check_script", "check_source"]
