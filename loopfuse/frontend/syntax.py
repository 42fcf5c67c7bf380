"""What to say where a text cannot go on: the place, what was expected there, and the way out.

`explain` first asks the known mistakes (mistakes.py, statements.py); what none of them recognises is told as
"expected X after Y", with the words below for the terminals of the grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from loopfuse.diag import Diagnostic, Fix, Source, Span, error
from loopfuse.frontend.lalr import END
from loopfuse.frontend.lexemes import CLOSERS, OPENERS, STARTERS, Lexeme, begins_line, column

OPERATORS = frozenset(("OR", "AND", "CMP", "PIPE", "CARET", "AMP", "SHIFT", "ADD", "MUL", "POW", "IF"))
_POSTFIX = frozenset(("LPAR", "LSQB", "DOT"))
_OPERAND = frozenset(
    ("NAME", "NUMBER", "STRING", "LPAR", "LSQB", "TRUE", "FALSE", "NOT", "TILDE", "ADD", "_REST", "NONE")
)
_SIGNS = {
    "EQUAL": "`=`", "COLON": "`:`", "COMMA": "`,`", "LPAR": "`(`", "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`",
    "LBRACE": "`{`", "RBRACE": "`}`", "_DOTS": "`..`", "_ARROW": "`->`", "_REST": "`...`", "NONE": "`None`",
    "STRING": "a string", "NUMBER": "a number", "AUG": "`+=`, `*=`, `max=`, `min=`, `|=`, `&=` or `^=`",
}  # fmt: skip
_NOTHING = {
    "+": "nothing to add", "-": "nothing to subtract", "*": "nothing to multiply by", "/": "nothing to divide by",
    "//": "nothing to divide by", "%": "nothing to divide by", "**": "no exponent", "@": "nothing to multiply by",
    "=": "no value", "in": "no range", "for": "no index", "to": "no file name", "from": "no file name",
}  # fmt: skip
FORMS = {
    "import": "import nn",
    "size": "size R = 4",
    "param": "param eps: f32 = 1e-5",
    "input": "input x: f32[N, D]",
    "output": "output y = x * 2",
    "let": "let y = x * 2",
    "fn": "fn f(x) = x * 2",
    "scan": "scan t in 0..T carry (h = h0) { next h = h + x[t] }",
    "accum": "accum hist: i32[256] = 0 for n { hist[x[n]] += 1 }",
    "require": 'require N % 2 == 0, "an even size"',
    "check": "check all(p >= 0)",
    "expect": "expect kernels <= 1",
    "numerics": "numerics strict",
    "pragma": "pragma materialize(t)",
    "next": "next h = h + 1",
    "emit": "emit hs = h",
    "return": "return x",
}


@dataclass(frozen=True, slots=True)
class Stop:
    """The lexeme `at` cannot follow. `first` and `last` bound its statement; `expected` is what could stand there."""

    source: Source
    lexemes: list[Lexeme]
    first: int
    last: int
    at: int
    offset: int  # of the failing token, which may begin inside a lexeme (the second `&` of `&&`)
    expected: frozenset[str]
    block: str = ""  # the keyword of the statement in whose block this is

    @property
    def here(self) -> Lexeme:
        """What cannot follow; at the end of the statement, what comes after it."""
        return self.lexemes[self.at]

    @property
    def before(self) -> Lexeme:
        """The lexeme before, or an empty one."""
        return (
            self.lexemes[self.at - 1] if self.at > self.first else Lexeme("end", "", self.here.start, self.here.start)
        )

    @property
    def after(self) -> Lexeme:
        """The lexeme after."""
        return self.lexemes[min(self.at + 1, len(self.lexemes) - 1)]

    @property
    def keyword(self) -> str:
        """The word that begins the statement, or nothing."""
        word = self.lexemes[self.first].text
        return word if word in STARTERS else ""

    @property
    def ended(self) -> bool:
        """Whether the statement stops here: the text, or the next statement, or the block's end comes."""
        return self.at >= self.last or self.here.kind == "end"

    @property
    def fresh(self) -> bool:
        """Whether this is where a statement may begin: at the start, or on a new line after a complete one."""
        new_line = begins_line(self.source.text, self.here.start) or self.before.text == "{"
        return self.at == self.first or (new_line and self.complete and not self.opens(braces=False))

    @property
    def complete(self) -> bool:
        """Whether what stands before could end here."""
        return END in self.expected or "LET" in self.expected or "RBRACE" in self.expected

    def wants(self, *kinds: str) -> bool:
        """Whether any of these terminals could stand here."""
        return not self.expected.isdisjoint(kinds)

    @property
    def wants_operand(self) -> bool:
        """Whether an expression must begin here."""
        return "NUMBER" in self.expected

    def opens(self, braces: bool = True) -> list[int]:
        """The brackets that are open here, outermost first."""
        stack: list[int] = []
        for n in range(self.first, self.at):
            text = self.lexemes[n].text
            if text in OPENERS and (braces or text != "{"):
                stack.append(n)
            elif text in CLOSERS and stack and self.lexemes[stack[-1]].text == CLOSERS[text]:
                stack.pop()
        return stack

    def back(self, words: Iterable[str], until: Iterable[str] = ()) -> int | None:
        """The nearest of `words` before this place and inside the same bracket; none past a word of `until`."""
        depth, stop = 0, frozenset(until)
        for n in range(self.at - 1, self.first - 1, -1):
            text = self.lexemes[n].text
            depth += (text in CLOSERS) - (text in OPENERS)
            if depth < 0:
                return None
            if depth == 0 and text in words:
                return n
            if depth == 0 and text in stop:
                return None
        return None

    def forward(self, at: int, words: Iterable[str]) -> int:
        """The first of `words` at or after a place in the same bracket, or where the bracket or statement ends."""
        depth = 0
        for n in range(at, self.last):
            text = self.lexemes[n].text
            if depth == 0 and (text in words or text in CLOSERS):
                return n
            depth += (text in OPENERS) - (text in CLOSERS)
        return self.last

    def span(self, first: int, last: int | None = None) -> Span:
        """From a lexeme up to another, which is included."""
        end = self.lexemes[first if last is None else last]
        return Span(self.source, self.lexemes[first].start, end.end)

    def text(self, first: int, last: int) -> str:
        """The characters from a lexeme up to another, which is excluded."""
        return self.source.text[self.lexemes[first].start : self.lexemes[last - 1].end] if last > first else ""

    def between(self, start: int, end: int) -> Span:
        """The span between two offsets."""
        return Span(self.source, start, end)

    def edit(self, span: Span, text: str, safe: bool = False) -> Fix:
        """Replace a span; the text of the fix is the line as it becomes."""
        whole = self.source.text
        start = whole.rfind("\n", 0, span.start) + 1
        end = whole.find("\n", span.end)
        line = whole[start : span.start] + text + whole[span.end : end if end >= 0 else len(whole)]
        return Fix("\n".join(part.strip() for part in line.splitlines()), ((span, text),), safe)

    def insert(self, offset: int, text: str, safe: bool = False) -> Fix:
        """Put a text at an offset."""
        return self.edit(self.between(offset, offset), text, safe)


Recognizer = Callable[[Stop], Diagnostic | None]


def explain(stop: Stop, known: Iterable[Recognizer]) -> Diagnostic:
    """The one message for a place where a text cannot go on."""
    for recognize in known:
        if found := recognize(stop):
            return found
    return bracket(stop) or expected(stop)


def bracket(stop: Stop) -> Diagnostic | None:
    """A bracket that is closed without being open, closed by another, or never closed."""
    here, opens = stop.here, stop.opens()
    if here.text in CLOSERS and not stop.ended:
        if not opens:
            return error("LF0108", f"`{here.text}` closes nothing", stop.span(stop.at), "no bracket is open here")
        opener = stop.lexemes[opens[-1]]
        if opener.text != CLOSERS[here.text] and not stop.wants_operand:
            wanted = OPENERS[opener.text]
            return error(
                "LF0108", f"`{here.text}` cannot close `{opener.text}`", stop.span(stop.at), f"`{wanted}` was expected",
                (stop.span(opens[-1]), "opened here"), fix=stop.edit(stop.span(stop.at), wanted),
            )  # fmt: skip
    if here.text == "}" and stop.ended and not opens and not stop.block and stop.complete:
        return error("LF0108", "`}` closes nothing", stop.span(stop.at), "no block is open here")
    cut = here.text in ("=", "{", "->") and stop.wants("RPAR", "RSQB")
    if opens and not stop.wants_operand and (stop.ended or looks_new(stop) or cut):
        opener = stop.lexemes[opens[-1]]
        wanted = OPENERS[opener.text]
        if opener.text != "{" and not stop.wants({"(": "RPAR", "[": "RSQB"}[opener.text]):
            return None
        last = stop.at - 1
        return error(
            "LF0108", f"`{opener.text}` is never closed", stop.span(last), f"`{wanted}` is missing after this",
            (stop.span(opens[-1]), "opened here"), notes=_why_here(stop),
            fix=stop.insert(stop.lexemes[last].end, wanted if opener.text != "{" else "\n}"),
        )  # fmt: skip
    return None


def expected(stop: Stop) -> Diagnostic:
    """The general message: what was expected, after what."""
    what, before, here = describe(stop), stop.before, stop.here
    after = f" after `{_short(before.text)}`" if before.text else ""
    form = FORMS.get(stop.keyword)
    header = not any(x.text == "=" for x in stop.lexemes[stop.first : stop.at])
    helps = [f"the form is     {form}"] if form and header and not stop.wants_operand and not stop.complete else []
    missing = stop.ended or here.text in CLOSERS or (here.text == "," and stop.wants_operand)
    if missing and before.text:
        label = _NOTHING.get(before.text, "nothing follows") if stop.wants_operand else f"{what} is missing after this"
        span = stop.span(stop.at - 1)
        return error("LF0101", f"expected {what}{after}", span, label, notes=_why_here(stop), helps=helps)
    found = f"found `{_short(here.text)}`" if here.text else "the text ends here"
    return error("LF0101", f"expected {what}{after}", stop.span(stop.at), found, helps=helps)


def describe(stop: Stop) -> str:
    """What could stand here, in words."""
    kinds = set(stop.expected)
    if "CARRY" in kinds:
        return "`carry`"
    words: list[str] = []
    if stop.wants_operand:
        words.append("an expression")
        kinds -= _OPERAND
        if stop.before.text == "(":
            kinds.discard("RPAR")
        if stop.before.text == "[":
            kinds -= {"COLON", "RSQB"}
    elif "NAME" in kinds and not kinds & OPERATORS:
        words.append(_name_role(stop))
        kinds -= {"NAME", "_REST"}
    elif kinds & OPERATORS:
        kinds -= {"NAME"}
    if kinds & OPERATORS and not stop.wants_operand:
        kinds -= OPERATORS - ({"IF"} if not kinds & {"ADD"} else set()) | _POSTFIX
        words.append("an operator")
    starters = {word.upper() for word in STARTERS}
    if kinds & starters:
        kinds -= starters
        words.append("a statement" if stop.at == stop.first else "a new statement")
    kinds.discard(END)
    if "an expression" in words:
        return "an expression"
    signs = sorted(k for k in kinds if k in _SIGNS)
    others = sorted(k for k in kinds if k not in _SIGNS)
    names = [w for w in words if w.split()[-1] not in ("operator", "statement")]
    words = names + [_SIGNS[k] for k in signs] + [f"`{k.lower()}`" for k in others] + words[len(names) :]
    return _list(words) or "the end"


def _name_role(stop: Stop) -> str:
    before, keyword = stop.before.text, stop.keyword
    if before == ":" or before == "->":
        return "a type"
    if before == "for" or stop.back(("for",)) is not None:
        return "an index"
    if before == "import":
        return "a module"
    if before == "[" and keyword in ("let", "output"):
        return "an index"
    if stop.block == "accum" or (before in ("{", "}") and keyword == "accum"):
        return "an update"
    return "a name"


def _why_here(stop: Stop) -> list[str]:
    """Why the statement is over: what comes next, and where."""
    here, text = stop.here, stop.source.text
    if here.kind == "end":
        return ["the text ends here"]
    if not stop.ended or here.text not in STARTERS:
        return []
    lines = text.count("\n", stop.before.end, here.start)
    where = " on the next line" if lines == 1 else f" on line {text.count(chr(10), 0, here.start) + 1}" if lines else ""
    return [f"`{here.text}`{where} starts a new statement"]


def looks_new(stop: Stop) -> bool:
    """Whether a line seems to begin a definition whose `let` is missing."""
    text, start = stop.source.text, stop.here.start
    limit = column(text, stop.lexemes[stop.first].start)
    begins = begins_line(text, start) and column(text, start) <= limit
    return begins and stop.here.kind == "name" and stop.after.text in ("=", ":", ":=")


def _short(text: str) -> str:
    return text if len(text) <= 24 else text[:23] + "…"


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1] if words else ""
