"""Mistakes in statements: a missing keyword, statements of Python, statements in the wrong place, updates."""

from __future__ import annotations

import difflib

from loopfuse.diag import Diagnostic, error
from loopfuse.frontend.build import RESERVED, reserved
from loopfuse.frontend.lexemes import INNER_ONLY, STARTERS, begins_line, column
from loopfuse.frontend.syntax import FORMS, Stop

UPDATES = frozenset(("+=", "-=", "*=", "/=", "//=", "%=", "**=", "|=", "&=", "^=", "<<=", ">>=", "@="))
_COMBINING = "`+= *= max= min= |= &= ^=`"
_LOOPS = ("let y[i in 0..N] = x[i] * 2", "scan t in 0..T carry (h = h0) { next h = h + x[t] }")
_FROZEN = "next h = where(live, new, h)"
# Statements of other languages: the code, what to say, the label, the fix.
FOREIGN: dict[str, tuple[str, str, str, str]] = {
    "def": ("LF0112", "a function is written with `fn`", "not a keyword", "fn f(x) = x * 2"),
    "for": ("LF0112", "there is no `for` statement", "indices are introduced where they are used",
            f"{_LOOPS[0]}\nor {_LOOPS[1]}"),
    "if": ("LF0112", "there is no `if` statement", "`if` chooses between values", "let y = a if c else b"),
    "elif": ("LF0112", "there is no `elif` statement", "`if` chooses between values",
             "let y = a if c else b if d else e"),
    "else": ("LF0112", "there is no `else` statement", "`if` chooses between values", "let y = a if c else b"),
    "while": ("LF0900", "not in version 1: `while`", "the number of steps decides memory and cost",
              "scan t in 0..MAX carry (h = h0) { next h = where(live, new, h) }"),
    "print": ("LF0900", "not in version 1: `print`", "a script only defines values",
              "output x   or   loopfuse run --show x"),
    "random": ("LF0900", "not in version 1: `random`", "a script has no state", "a hash of the index, in u32"),
    "class": ("LF0112", "there are no classes", "not a keyword", "fn f(x) = x * 2"),
    "with": ("LF0112", "there is no `with` statement", "not a keyword", "pragma materialize(t)"),
    "try": ("LF0112", "there are no exceptions", "not a keyword", "let y = a / b if b != 0 else 0"),
    "del": ("LF0112", "values are never deleted", "not a keyword", "leave the statement out"),
    "pass": ("LF0112", "there is no `pass` statement", "not a keyword", "leave the statement out"),
    "break": ("LF0900", "not in version 1: early exit", "the number of steps is fixed", _FROZEN),
    "continue": ("LF0900", "not in version 1: early exit", "the number of steps is fixed", _FROZEN),
    "assert": ("LF0112", "an assertion is `require` (of sizes) or `check` (of values)", "not a keyword",
               "check all(x >= 0)"),
    "lambda": ("LF0101", "there is no `lambda`", "name the function", "fn f(x) = x * 2"),
}  # fmt: skip
BLOCKS = frozenset(("def", "for", "if", "elif", "else", "while", "class", "with", "try"))
_SYNONYMS = dict.fromkeys(("var", "val", "const", "auto", "set", "local", "define"), "let") | dict.fromkeys(
    ("func", "function", "fun", "proc"), "fn"
)
_PLACES = {
    "fn": "let, size, scan, accum, require, check, pragma and a last return",
    "scan": "let, scan, accum, pragma, next and emit",
    "accum": "updates such as h[i] += 1",
}


def foreign(stop: Stop) -> Diagnostic | None:
    """A statement of another language, where a statement begins."""
    word, span = stop.here.text, stop.span(stop.at)
    if not stop.fresh:
        return None
    if word == "@":
        return error("LF0112", "there are no decorators", span, "`@` multiplies matrices", fix="pragma materialize(t)")
    if word == "from" and "import" in (x.text for x in stop.lexemes[stop.at : stop.at + 4]):
        return error("LF0112", "a module is imported whole", span, "not a statement", fix="import nn")
    if word in FOREIGN and stop.after.text not in ("=", ":="):
        code, message, label, fix = FOREIGN[word]
        if word == "print" and stop.lexemes[min(stop.at + 2, stop.last)].kind == "name":
            shown = stop.lexemes[stop.at + 2].text
            fix = f"output {shown}   or   loopfuse run --show {shown}"
        return error(code, message, span, label, fix=fix)
    return None


def misplaced(stop: Stop) -> Diagnostic | None:
    """A statement of the language where it cannot stand."""
    word, span = stop.here.text, stop.span(stop.at)
    empty = stop.keyword == "accum" and stop.before.text == "{"
    if word not in STARTERS or not (stop.complete or empty) or stop.wants_operand:
        return None
    if stop.at == stop.first and not stop.block and word in INNER_ONLY:
        owner, fix = "a scan", FORMS["scan"]
        if word == "return":
            owner = "a function"
            value = stop.text(stop.at + 1, _line_end(stop, stop.at + 1)) or "x"
            fix = f"output {value}" if value.isidentifier() else f"output y = {value}"
        return error("LF0115", f"`{word}` stands only in the block of {owner}", span, "no block is open here", fix=fix)
    if not stop.block and (stop.ended or stop.keyword not in _PLACES):
        return None
    block = stop.block or stop.keyword
    if word == "fn":
        return error("LF0101", "a function cannot be defined inside a block", span, "nested function",
                     notes=["a function uses what was defined before it"],
                     fix="move it before this statement")  # fmt: skip
    if stop.before.text not in ("{",) and "RBRACE" in stop.expected and "LET" not in stop.expected and block == "fn":
        return error("LF0115", "`return` is the last statement of a function", span, "nothing can follow it")
    what = {"fn": "a function", "scan": "a scan", "accum": "an accum"}.get(block, "a block")
    return error("LF0115", f"`{word}` cannot stand in the block of {what}", span, "not here",
                 notes=[f"its block holds {_PLACES.get(block, 'statements')}"])  # fmt: skip


def no_return(stop: Stop) -> Diagnostic | None:
    """The block of a function that ends without `return`."""
    if stop.block == "fn" and stop.fresh and _bare_value(stop):
        return error("LF0118", "the result of a function follows `return`", stop.span(stop.at),
                     "a value alone is no statement", fix=stop.insert(stop.here.start, "return ", True))  # fmt: skip
    if "RETURN" not in stop.expected or stop.keyword != "fn" or stop.here.text != "}" or stop.wants_operand:
        return None
    head = stop.span(stop.first, stop.first + 1)
    return error("LF0118", "this function returns nothing", stop.span(stop.at), "`return` is missing before this",
                 (head, "of this function"), fix=f"return {_last_let(stop) or 'x'}")  # fmt: skip


def _bare_value(stop: Stop) -> bool:
    """Whether what begins here, the last statement of a block, is an expression."""
    last = stop.last < len(stop.lexemes) and stop.lexemes[stop.last].text == "}"
    operand = stop.here.kind in ("name", "number") or stop.here.text in ("(", "[", "-")
    word = stop.here.text in STARTERS or stop.here.text in FOREIGN
    return last and operand and stop.after.text not in ("=", ":=", ":") and not word and not _is_update(stop)


def _last_let(stop: Stop) -> str:
    for n in range(stop.at - 1, stop.first, -1):
        if stop.lexemes[n].text == "let" and stop.lexemes[n + 1].kind == "name":
            return stop.lexemes[n + 1].text
    return ""


def _is_update(stop: Stop) -> bool:
    operator = _operator_after(stop)
    return operator is not None and stop.lexemes[operator].text in UPDATES


def _operator_after(stop: Stop) -> int | None:
    """Where the left side that begins here ends: the lexeme after `x` or `x[...]`."""
    if stop.here.kind != "name":
        return None
    at = stop.at + 1
    if at < stop.last and stop.lexemes[at].text == "[":
        at = stop.forward(at + 1, ()) + 1
    return at if at < stop.last else None


def missing_let(stop: Stop) -> Diagnostic | None:
    """`x = e`, `x[i] = e`, `x: f32 = e`, `x := e`, `x += e` where a statement begins; a misspelt keyword."""
    here, span = stop.here, stop.span(stop.at)
    if not stop.fresh or here.kind != "name" or stop.block == "accum" or stop.keyword == "accum":
        return None
    at = _operator_after(stop)
    operator = stop.lexemes[at].text if at is not None else ""
    if at is not None and operator in UPDATES:
        return _update_outside(stop, at)
    if here.text in RESERVED:
        return None
    if at is not None and operator == ":=":
        whole = stop.between(here.start, stop.lexemes[at].end)
        fix = stop.edit(whole, f"let {stop.text(stop.at, at)} =")
        return error("LF0110", "a definition begins with `let`", span, "no keyword", fix=fix)
    if operator in ("=", ":"):
        return error("LF0110", "a definition begins with `let`", span, "no keyword",
                     fix=stop.insert(here.start, "let ", operator == "="))  # fmt: skip
    if stop.after.kind == "name" and (word := meant(here.text)):
        return error("LF0110", f"`{here.text}` begins no statement", span, f"did you mean `{word}`?",
                     fix=stop.edit(span, word))  # fmt: skip
    return None


def meant(word: str) -> str:
    """The keyword that a word seems to stand for, or nothing."""
    near = difflib.get_close_matches(word.lower(), sorted(STARTERS), 1, 0.7)
    return _SYNONYMS.get(word.lower()) or (near[0] if near else "")


def no_keyword(stop: Stop) -> Diagnostic | None:
    """A value where a statement begins."""
    here, text = stop.here, stop.source.text
    if not stop.fresh or here.text in STARTERS or stop.ended or stop.block == "accum" or stop.keyword == "accum":
        return None
    value = here.kind in ("name", "number", "string") or here.text in ("(", "[")
    if value and column(text, here.start) <= column(text, stop.lexemes[stop.first].start):
        return error("LF0110", "a statement begins with a keyword", stop.span(stop.at), "not a keyword",
                     helps=["a value is shown with     output y = x * 2"])  # fmt: skip
    return None


def _update_outside(stop: Stop, at: int) -> Diagnostic:
    operator = stop.lexemes[at].text
    left, right = stop.text(stop.at, at), stop.text(at + 1, _line_end(stop, at + 1))
    form = f"let {left} = {left} {operator[:-1]} {right}"
    if stop.block == "scan" or stop.keyword == "scan":
        form = f"next {left} = {left} {operator[:-1]} {right}"
    if stop.after.text == "[":
        form = f"accum {stop.here.text}: f32[N] = 0 for i {{ {left} {operator} {right} }}"
    return error("LF0114", f"`{operator}` stands only in the block of an accum", stop.span(at), "values never change",
                 fix=form)  # fmt: skip


def _line_end(stop: Stop, at: int) -> int:
    line = stop.source.text.find("\n", stop.lexemes[at].start)
    while at < stop.last and (line < 0 or stop.lexemes[at].start < line) and stop.lexemes[at].text != "}":
        at += 1
    return at


def updates(stop: Stop) -> Diagnostic | None:
    """In a scatter: `=`, `-=` and others that do not combine, `max =` with a blank, an empty block."""
    here, span = stop.here, stop.span(stop.at)
    if "AUG" in stop.expected:
        if here.text == "=":
            return error("LF0323", "a scatter needs a combining operator", span, "which of two writes would win?",
                         notes=["two updates may meet in one element, in any order"],
                         fix=f"{_COMBINING}; over distinct places `max=` from -inf keeps the value")  # fmt: skip
        if here.text in ("max", "min") and stop.after.text == "=":
            whole = stop.span(stop.at, stop.at + 1)
            return error("LF0101", f"`{here.text}=` is one word", whole, "leave the blank out",
                         fix=stop.edit(whole, f"{here.text}=", True))  # fmt: skip
        if here.text in UPDATES:
            end = _line_end(stop, stop.at + 1)
            value = stop.text(stop.at + 1, end)
            whole = stop.between(here.start, stop.lexemes[end - 1].end)
            rewritten = {"-=": f"+= -({value})", "/=": f"*= 1 / ({value})"}.get(here.text)
            return error("LF0101", f"`{here.text}` does not combine", span, f"the updates are {_COMBINING}",
                         fix=stop.edit(whole, rewritten) if rewritten and value else None)  # fmt: skip
    if here.text in UPDATES and stop.wants("CMP", "EQUAL"):
        at = stop.back((stop.lexemes[stop.first].text,))
        return error("LF0114", f"`{here.text}` stands only in the block of an accum", span, "values never change",
                     fix=None if at is None else "accum h: i32[N] = 0 for i { h[x[i]] += 1 }")  # fmt: skip
    if here.text == "}" and stop.keyword == "accum" and stop.before.text == "{":
        return error("LF0101", "an accum needs an update", span, "nothing to do", fix=f"{_name(stop)}[i] += 1")
    return None


def _name(stop: Stop) -> str:
    word = stop.lexemes[stop.first + 1]
    return word.text if word.kind == "name" else "h"


def reserved_word(stop: Stop) -> Diagnostic | None:
    """A word of the language where a name stands."""
    here = stop.here
    if here.kind != "name" or here.text not in RESERVED or "NAME" not in stop.expected:
        return None
    if stop.ended and begins_line(stop.source.text, here.start):
        return None
    follows = stop.after.text
    if stop.before.text == ".":
        return error("LF0103", f"`{here.text}` is a word of the language", stop.span(stop.at), "not an attribute",
                     fix="an extent is written x.shape[0]")  # fmt: skip
    if stop.wants_operand or stop.complete:
        usable = here.text not in ("and", "or", "if", "else", "for", "not", "None") and not stop.complete
        ends = ("+", "-", "*", "/", "**", ")", "]", ",", ".", "[", "<", ">", "==")
        used = follows in ends or stop.after.kind == "end" or (follows == "=" and bool(stop.opens()))
        if usable and used and (here.text not in STARTERS or stop.ended):
            return error(
                "LF0103", f"`{here.text}` is a word of the language", stop.span(stop.at), "not the name of a value"
            )
        return None
    defines = follows in ("=", ":", "[", "(", ",", ")", "in", ":=", "==", "{", "]") or stop.after.kind == "end"
    if here.text in STARTERS and not defines:
        return None
    return reserved(here.text, stop.span(stop.at))


def definitions(stop: Stop) -> Diagnostic | None:
    """`let x == e`, `let x := e`, several names, an input's value, a type with parentheses, a function with `:`."""
    here, span, keyword = stop.here, stop.span(stop.at), stop.keyword
    if here.text in ("==", "===", ":=") and stop.offset > here.start and stop.before.kind in ("name", "op"):
        return error("LF0111", "a definition is written with `=`", span, f"`{here.text}` does not define",
                     fix=stop.edit(span, "=", True))  # fmt: skip
    if here.text == "," and not stop.opens() and keyword and not stop.wants_operand:
        if keyword == "let" and stop.at == stop.first + 2:
            end = stop.forward(stop.at, ("=",))
            names = stop.span(stop.first + 1, end - 1)
            return error("LF0101", "several names of one `let` stand in parentheses", span, "found `,`",
                         fix=stop.edit(names, f"({names.text})"))  # fmt: skip
        other = f"{keyword} {stop.after.text}" if stop.after.kind == "name" else f"{keyword} ..."
        return error("LF0101", f"one `{keyword}` makes one definition", span, "found `,`",
                     fix=f"begin another statement: {other}")  # fmt: skip
    if here.text == "=" and keyword == "input" and stop.complete:
        return error("LF0101", "an input has no value", span, "it is given when the script runs",
                     fix="`from` names a file; `param`, `size` and `let` take values")  # fmt: skip
    if here.text == "(" and stop.lexemes[stop.at - 2].text in (":", "->") and "LSQB" in stop.expected:
        end = stop.forward(stop.at + 1, ())
        whole = stop.span(stop.at, min(end, stop.last - 1))
        return error("LF0101", "dims stand in square brackets", span, "found `(`",
                     fix=stop.edit(whole, f"[{stop.text(stop.at + 1, end)}]"))  # fmt: skip
    body = keyword == "fn" and "LBRACE" in stop.expected
    if body and here.text in (":", "=>", "return"):
        what = "a function's value follows `=`, its statements stand in braces"
        returns = here.text != "return" and stop.after.text == "return"
        whole = stop.between(stop.before.end, stop.after.end if returns else here.end)
        return error("LF0112", what, span, f"found `{here.text}`", fix=stop.edit(whole, " ="))
    return None


FIRST = (foreign, misplaced, no_return, updates, definitions, missing_let, reserved_word, no_keyword)
