"""The door of the checker: a script to a typed program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from loopfuse.diag import Collector, Source, Span, error
from loopfuse.frontend import ast, typed
from loopfuse.frontend.check.declarations import Declarations
from loopfuse.frontend.check.values import Entry, Function, Poison
from loopfuse.frontend.parse import read


class Program(Declarations):
    """A whole script."""

    def run(self, script: ast.Script, name: str, lost: Iterable[str] = ()) -> typed.TypedProgram | None:
        """Check a parsed script; None after errors. `lost` are names whose definitions did not parse."""
        for missing in lost:
            self.scope.values[missing] = Entry(Poison(), None)
            self.scope.functions[missing] = Function(missing)
        for phase in (self.imports, self.functions, self.declare_dims, self.declare_sizes, self.declare_params, self.declare_inputs,
                      self.early_requires, self.param_domains, self.input_domains):  # fmt: skip
            phase(script)
        for node in script.body:
            if not isinstance(node, ast.FnDecl | ast.InputDecl | ast.ParamDecl | ast.Import | ast.SizeDecl):
                self.statement(node)
        if not self.outputs and not self.collector.errors:
            end = Span(script.source, len(script.source.text), len(script.source.text))
            self.report(error("LF0209", "the script has no output", end, "nothing is computed", fix="output y = ..."))
        if self.collector.errors:
            return None
        remarks = tuple(d for d in self.collector.found if d.level != "error")
        checks = tuple(self.marked(c) for c in self.checks)
        return typed.TypedProgram(name, tuple(self.sizes.values()), tuple(self.inputs), tuple(self.params), tuple(self.outputs),
                                  tuple(self.buffers.values()), tuple(self.body), tuple(self.requires), checks, tuple(self.directives),
                                  self.numerics, tuple(self.names), remarks)  # fmt: skip

    def marked(self, check: typed.Check) -> typed.Check:
        """A domain with the mark whether a proof needed it; a range passed on by a definition counts for all domains."""
        buffers = {i.name: i.buffer for i in self.inputs}
        if check.domain_of is None:
            return check
        passed_on = any(b not in buffers.values() for b in self.used_domains)
        used = passed_on or buffers.get(check.domain_of, check.domain_of) in self.used_domains
        return typed.Check(check.buffer, check.text, check.message, check.domain_of, used, check.span)


def check_script(script: ast.Script, collector: Collector, *, sizes: Mapping[str, int] | None = None, search: Path | None = None,
                 name: str | None = None) -> typed.TypedProgram | None:  # fmt: skip
    """Check a parsed script. Errors, warnings and remarks go to `collector`; None if there are errors.

    `sizes` replaces the values of `size` declarations; `search` is the folder in which `import "file"` looks.
    """
    stem = name or Path(script.source.name).stem or "program"
    return Program(collector, dict(sizes or {}), search).run(script, stem)


def check_source(source: Source, *, sizes: Mapping[str, int] | None = None, search: Path | None = None,
                 collector: Collector) -> typed.TypedProgram | None:  # fmt: skip
    """Parse and check a source; what parses is checked even after syntax errors, and None is returned for any error."""
    script, lost = read(source, collector)
    if collector.errors:
        # What failed to parse was meant to define something: using that must not be a second error.
        return Program(collector, dict(sizes or {}), search).run(script, "program", lost)
    return check_script(script, collector, sizes=sizes, search=search)
