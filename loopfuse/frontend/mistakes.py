"""Mistakes inside expressions: signs of other languages, strings, numbers, ranges, comprehensions, missing commas.

Each function looks at the place where a text cannot go on and tells what it recognises, or gives None. `KNOWN` is the
order in which they are asked.
"""

from __future__ import annotations

import unicodedata

from loopfuse.diag import Diagnostic, Fix, error
from loopfuse.frontend.lexemes import CLOSERS, OPENERS
from loopfuse.frontend.syntax import Stop, looks_new

_LOOKALIKES = {
    "×": "*", "·": "*", "∗": "*", "÷": "/", "−": "-", "–": "-", "—": "-", "≤": "<=", "≥": ">=", "≠": "!=", "→": "->",
    "“": '"', "”": '"', "„": '"', "‟": '"', "«": '"', "»": '"', "‘": '"', "’": '"', "…": "...", "∧": "and", "∨": "or",
    "¬": "not", "∞": "inf", "√": "sqrt", "∑": "sum", "∏": "prod", "∈": "in",
}  # fmt: skip
_OTHER_SIGNS = {
    "&&": ("and", "`and` works element by element"),
    "||": ("or", "`or` works element by element"),
    "!": ("not ", "`not` works element by element"),
    "===": ("==", "equality is written with two signs"),
    "!==": ("!=", "inequality is written with two signs"),
    "<>": ("!=", "inequality is written `!=`"),
    "^^": ("**", "a power is written `**`, exclusive or of integers `^`"),
}
_SUFFIXES = {"f": "f32", "F": "f32", "d": "f64", "D": "f64", "h": "f16", "u": "u32", "U": "u32", "l": "i64", "L": "i64"}


def characters(stop: Stop) -> Diagnostic | None:
    """A character that no token has."""
    here = stop.here
    if here.kind != "bad" and here.text not in ("$", "`"):
        return None
    span, c = stop.span(stop.at), here.text[0]
    number = f"U+{ord(c):04X}"
    if unicodedata.category(c) == "Cs":
        return error("LF0104", "the text is not valid UTF-8", span, f"byte 0x{ord(c) & 0xFF:02X} is no character")
    if c == "\0":
        return error("LF0104", "the text has a null byte", span, "is this a script?")
    if c in _LOOKALIKES:
        good = _LOOKALIKES[c]
        message = f"`{c}` is not a sign of the language"
        return error("LF0104", message, span, f"write `{good}`", fix=_plain_line(stop))
    if c.isspace() or unicodedata.category(c) in ("Cf", "Zs"):
        name = unicodedata.name(c, number).lower()
        return error("LF0104", f"{name} ({number}) between words", span, "use an ordinary blank",
                     fix=Fix("replace it by a blank", ((span, " "),), safe=True))  # fmt: skip
    plain = unicodedata.normalize("NFKC", c)
    if plain != c and plain.isascii():
        fix = stop.edit(span, f" ** {plain}" if plain.isdigit() else plain)
        return error(
            "LF0104", f"`{c}` is not a sign of the language", span, f"write `{fix.edits[0][1].strip()}`", fix=fix
        )
    shown = "a backquote" if c == "`" else f"`{c}`" if c.isprintable() else f"character {number}"
    return error("LF0104", f"{shown} is not a sign of the language", span, unicodedata.name(c, number).lower())


def _plain_line(stop: Stop) -> Fix:
    """The line with every sign that only looks like one of the language replaced."""
    text, here = stop.source.text, stop.here.start
    start, end = text.rfind("\n", 0, here) + 1, text.find("\n", here)
    line = text[start : end if end >= 0 else len(text)]
    edits = tuple(
        (stop.between(start + n, start + n + 1), _LOOKALIKES[c]) for n, c in enumerate(line) if c in _LOOKALIKES
    )
    return Fix("".join(_LOOKALIKES.get(c, c) for c in line).strip(), edits)


def strings(stop: Stop) -> Diagnostic | None:
    """A string that never ends, in single or triple quotes, with a prefix; a file name without quotes."""
    here, before = stop.here, stop.before
    span = stop.span(stop.at)
    if before.text == '""' and here.text.startswith('"') and before.end == here.start:
        return error(
            "LF0105", "there are no triple quotes", stop.span(stop.at - 1, stop.at), 'a string is "..." on one line'
        )
    if here.kind == "open":
        return error(
            "LF0105", "this string never ends", span, "a string ends on its line", fix=stop.insert(here.end, '"')
        )
    if here.kind == "quote" or here.text == "'":
        if here.text == "'":
            return error("LF0105", "strings stand in double quotes", span, "a single quote begins nothing")
        inner = here.text[1:-1].replace('"', '\\"')
        return error("LF0105", "strings stand in double quotes", span, "in single quotes",
                     fix=stop.edit(span, f'"{inner}"', True))  # fmt: skip
    if here.kind == "string" and before.kind == "name" and before.end == here.start:
        return error("LF0105", "a string has no prefix", stop.span(stop.at - 1), "nothing is interpolated")
    if here.kind == "name" and stop.after.kind == "string" and stop.after.start == here.end:
        return error("LF0105", "a string has no prefix", span, "nothing is interpolated", fix=stop.edit(span, "", True))
    if before.text in ("to", "from") and "STRING" in stop.expected and here.kind == "name" and not stop.ended:
        end = here.end
        while end < len(stop.source.text) and not stop.source.text[end].isspace():
            end += 1
        span = stop.between(here.start, end)
        return error(
            "LF0105", "a file name stands in quotes", span, "not a string", fix=stop.edit(span, f'"{span.text}"')
        )
    return None


def comments(stop: Stop) -> Diagnostic | None:
    """Comments of C, semicolons, line continuations."""
    here, span = stop.here, stop.span(stop.at)
    if here.text == ";":
        return error("LF0116", "statements have no `;`", span, "every statement begins with its keyword",
                     fix=Fix("leave it out", ((span, ""),), safe=True))  # fmt: skip
    if here.text == "\\":
        return error("LF0116", "a line needs no `\\` to go on", span, "newlines mean nothing",
                     fix=Fix("leave it out", ((span, ""),), safe=True))  # fmt: skip
    if here.text in ("/*", "*/"):
        return error("LF0116", "comments begin with `#`", span, "there are no block comments")
    if here.text in ("//", "--") and stop.fresh:
        return error("LF0116", "comments begin with `#`", span, "this divides", fix=stop.edit(span, "#"))
    line = stop.source.text.rfind("\n", 0, here.start)
    for n in range(stop.at - 1, stop.first, -1):
        lexeme = stop.lexemes[n]
        if lexeme.start <= line:
            break
        words = lexeme.text == "//" and stop.lexemes[n + 1].kind == "name"
        if words and here.kind in ("name", "number", "bad", "quote") and "ADD" in stop.expected:
            return error("LF0116", "comments begin with `#`", stop.span(n), "this divides",
                         fix=stop.edit(stop.span(n), "#"))  # fmt: skip
    return None


def other_signs(stop: Stop) -> Diagnostic | None:
    """Operators of C, JavaScript or Pascal."""
    here, span = stop.here, stop.span(stop.at)
    if here.text in _OTHER_SIGNS:
        good, why = _OTHER_SIGNS[here.text]
        span = stop.span(stop.at)
        return error("LF0111", f"`{here.text}` is not an operator", span, f"write `{good.strip()}`", notes=[why],
                     fix=stop.edit(span, good))  # fmt: skip
    if here.text == "?":
        first = (stop.back(("=", ",", "return", "for", "if", "else")) or (stop.opens() or [stop.first])[-1]) + 1
        colon = stop.forward(stop.at + 1, (":",))
        last = stop.forward(colon + 1, (",",))
        fix = f"{stop.text(stop.at + 1, colon)} if {stop.text(first, stop.at)} else {stop.text(colon + 1, last)}"
        return error(
            "LF0111", "`? :` is not an operator", span, "write `a if c else b`", fix=fix if last > colon + 1 else None
        )
    if here.text in ("->", "=>") and not (stop.keyword == "fn" and "LBRACE" in stop.expected):
        return error("LF0111", f"`{here.text}` is not an operator", span, "only a function's result type follows `->`")
    twice = stop.before.text in ("+", "-") and stop.at >= stop.first + 3 and stop.lexemes[stop.at - 3].text not in "=(["
    if twice and stop.wants_operand and stop.lexemes[stop.at - 2].text == stop.before.text:
        if stop.lexemes[stop.at - 2].end != stop.before.start or not (stop.ended or here.text in CLOSERS):
            return None
        sign, span = stop.before.text, stop.span(stop.at - 2, stop.at - 1)
        return error("LF0111", f"`{sign}{sign}` is not an operator", span, "values never change",
                     fix=stop.edit(span, f" {sign} 1"))  # fmt: skip
    return None


def numbers(stop: Stop) -> Diagnostic | None:
    """A number with a name right behind it."""
    here, before = stop.here, stop.before
    if before.kind != "number" or here.kind != "name" or before.end != here.start:
        return None
    span = stop.span(stop.at)
    whole = stop.span(stop.at - 1, stop.at)
    if here.text in _SUFFIXES:
        good = _SUFFIXES[here.text]
        label = f"for {good} write `{before.text}{good}`"
        return error("LF0106", f"`{here.text}` is not a suffix of numbers", span, label, fix=stop.edit(span, good))
    if here.text in ("j", "i", "J"):
        return error("LF0106", "there are no complex numbers", whole, "carry real and imaginary part as two values")
    if before.text == "0" and here.text[0] in "xXbBoO":
        return error(
            "LF0106", f"`{whole.text}` is not a number", whole, "0x and hexadecimal digits, or 0b and binary ones"
        )
    return error("LF0106", f"`{whole.text}` is not a number", whole, "a product is written with `*`",
                 fix=stop.edit(whole, f"{before.text} * {here.text}"))  # fmt: skip


def ranges(stop: Stop) -> Diagnostic | None:
    """A slice where a range stands, a range where a slice stands, Python's `range`."""
    here, span = stop.here, stop.span(stop.at)
    inside = stop.back(("in",), (",", "for", "by"))
    subscript = bool(stop.opens()) and stop.lexemes[stop.opens()[-1]].text == "["
    if inside is not None and here.text == ":":
        dots = any(stop.lexemes[n].text == ".." for n in range(inside, stop.at))
        good = " by " if dots else ".."
        return error("LF0113", "a range is written with `..`", span, "`:` makes slices",
                     fix=stop.edit(span, good, not dots))  # fmt: skip
    if here.text in ("...", "..=", "...=") and inside is not None:
        what = "a range leaves its upper bound out" if here.text.endswith("=") else "a range is written with two dots"
        if here.text == "...":
            return error("LF0113", what, span, "three dots", fix=stop.edit(span, "..", True))
        last = stop.forward(stop.at + 1, (",", "for", "if", "by", "carry"))
        upper = stop.text(stop.at + 1, last)
        whole = stop.between(here.start, stop.lexemes[last - 1].end)
        return error("LF0113", what, span, "write `..` and one more", fix=stop.edit(whole, f"..{upper} + 1"))
    if here.text == "..":
        if inside is not None and stop.before.text != "..":
            return error("LF0113", "a step follows `by`", span, "a second `..`", fix=stop.edit(span, " by "))
        if subscript and not stop.wants("IN"):
            return error("LF0113", "a slice is written with `:`", span, "`..` makes the ranges of indices",
                         fix=stop.edit(span, ":", True))  # fmt: skip
        return error("LF0113", "a range stands only after `in`", span, "indices are introduced: `k in 0..N`")
    if inside is not None and here.text in ("step", "stride", "with") and "BY" in stop.expected:
        return error("LF0113", "a step follows `by`", span, f"`{here.text}` is a name", fix=stop.edit(span, "by", True))
    if "_DOTS" in stop.expected and inside is not None and stop.lexemes[inside - 1].kind == "name":
        return _one_ended(stop, inside)
    if here.text == "=" and stop.before.kind == "name" and stop.wants("IN"):
        named = stop.lexemes[stop.at - 2].text in ("for", "scan")
        if named or stop.forward(stop.at, ("..",)) < stop.forward(stop.at, (",",)):
            return error("LF0113", "an index is introduced with `in`", span, "`=` defines values",
                         fix=stop.edit(span, "in", True))  # fmt: skip
    return None


def _one_ended(stop: Stop, inside: int) -> Diagnostic | None:
    """`for k in range(K)` or `for k in K`."""
    first = inside + 1
    if first >= stop.at:
        return None
    whole = stop.span(first, stop.at - 1)
    if stop.lexemes[first].text == "range" and stop.before.text == ")" and stop.lexemes[first + 1].text == "(":
        args: list[str] = []
        at = first + 2
        while at < stop.at - 1:
            comma = min(stop.forward(at, (",",)), stop.at - 1)
            args.append(stop.text(at, comma))
            at = comma + 1
        if not args or len(args) > 3:
            return None
        args = ["0", *args] if len(args) == 1 else args
        good = f"{args[0]}..{args[1]}" + (f" by {args[2]}" if len(args) == 3 else "")
        return error(
            "LF0113", "`range` is written with `..`", whole, f"write `{good}`", fix=stop.edit(whole, good, True)
        )
    return error("LF0113", "a range has two ends", whole, "from where?", fix=stop.edit(whole, f"0..{whole.text}"))


def comprehensions(stop: Stop) -> Diagnostic | None:
    """`for` twice, a second `if`, named arguments after `for`."""
    here, span = stop.here, stop.span(stop.at)
    loop = stop.back(("for",))
    if loop is None or stop.ended:
        return None
    if here.text == "for":
        joined = stop.between(stop.before.end, here.end)
        condition = stop.back(("if",), ("for",))
        return error("LF0101", "one `for` introduces all indices", span, "the second `for`",
                     (stop.span(loop), "the first"), fix=None if condition else stop.edit(joined, ","))  # fmt: skip
    if here.text == "if" and (first := stop.back(("if",), ("for",))) is not None:
        return error("LF0101", "one `if` holds all conditions", span, "the second `if`",
                     (stop.span(first), "the first"), fix=stop.edit(span, "and"))  # fmt: skip
    if here.text == "=" and stop.before.text in ("dtype", "axis", "keepdims", "ddof"):
        name = stop.span(stop.at - 1)
        opener = stop.opens()[-1]
        if stop.before.text != "dtype" or stop.lexemes[stop.at - 2].text != ",":
            return error("LF0101", f"`{name.text}=` cannot follow `for`", name, "the `for` names what is reduced",
                         (stop.span(loop), "here"), fix=f"leave `{name.text}=` out")  # fmt: skip
        body, binders = stop.text(opener + 1, loop), stop.text(loop, stop.at - 2)
        good = f"{stop.after.text}({body}) {binders}"
        whole = stop.between(stop.lexemes[opener + 1].start, stop.after.end)
        return error("LF0101", "`dtype=` cannot follow `for`", name, "cast what is reduced", (stop.span(loop), "here"),
                     fix=stop.edit(whole, good))  # fmt: skip
    return None


def conditionals(stop: Stop) -> Diagnostic | None:
    """`if` without `else`, before its value, or with `then` or `elif`."""
    here, span = stop.here, stop.span(stop.at)
    if stop.wants_operand and here.text in ("if", "unless") and not stop.fresh:
        return error("LF0112", "a conditional value begins with the value", span, "`if` stands in the middle",
                     fix="a if c else b")  # fmt: skip
    if "ELSE" not in stop.expected:
        return None
    opened = stop.back(("if",))
    also = (stop.span(opened) if opened is not None else None, "of this `if`")
    if here.text in ("elif", "elsif", "elseif"):
        return error("LF0112", f"there is no `{here.text}`", span, "another `if` follows `else`", also,
                     fix="a if c else b if d else e")  # fmt: skip
    if here.text in ("then", ":", "{"):
        return error("LF0112", "a conditional value is written `a if c else b`", span, f"found `{here.text}`", also)
    if stop.ended or here.text in CLOSERS or here.text in (",", "for"):
        last = stop.lexemes[stop.at - 1]
        return error("LF0101", "`if` needs an `else`: every element has a value", stop.span(stop.at - 1),
                     "`else` is missing after this", also, fix=stop.insert(last.end, " else 0"))  # fmt: skip
    return None


def python_words(stop: Stop) -> Diagnostic | None:
    """`lambda`, `is`, `in` as an operator, `None` as a value, unpacking, named arguments with `:`, sets."""
    here, before, span = stop.here, stop.before, stop.span(stop.at)
    if before.text == "lambda":
        return error("LF0101", "there is no `lambda`", stop.span(stop.at - 1), "name the function",
                     notes=["a function may be passed by its name and uses what was defined before it"],
                     fix="fn f(x) = x * 2")  # fmt: skip
    if here.text == "is" and stop.after.text == "None":
        return error(
            "LF0112", "no value is ever missing", stop.span(stop.at, stop.at + 1), "there is no test for `None`"
        )
    if here.text == "is" and "CMP" in stop.expected:
        return error("LF0112", "`is` is not an operator", span, "write `==`", fix=stop.edit(span, "=="))
    if here.text in ("in", "not") and "CMP" in stop.expected and "IN" not in stop.expected:
        return error("LF0112", "there is no test of membership", span, "write comparisons", fix="any(x[k] == y for k)")
    if here.text == "None" and stop.wants_operand:
        return error("LF0101", "`None` is not a value", span, "it only inserts an axis, as in x[:, None]",
                     helps=["a parameter that may be left out has a default value"])  # fmt: skip
    if here.text in ("*", "**") and before.text in ("(", ","):
        return error("LF0112", "arguments cannot be unpacked", span, "write every argument")
    inside = stop.lexemes[stop.opens()[-1]].text if stop.opens() else ""
    if here.text == ":" and before.kind == "name" and inside == "(" and "EQUAL" in stop.expected:
        whole = stop.between(here.start, stop.after.start)
        return error("LF0112", "a named argument is written with `=`", span, "`:` stands before types",
                     fix=stop.edit(whole, "=", True))  # fmt: skip
    if here.text == "{" and stop.wants_operand:
        return error("LF0112", "braces hold the statements of a block", span, "an array stands in brackets",
                     fix="[1, 2, 3]")  # fmt: skip
    return None


def equals(stop: Stop) -> Diagnostic | None:
    """`=` where two values are compared."""
    here = stop.here
    if here.text != "=" or "CMP" not in stop.expected or stop.fresh:
        return None
    span = stop.span(stop.at)
    first = stop.back(("=",))
    also = (stop.span(first) if first is not None and not stop.opens() else None, "this one defines")
    return error("LF0111", "values are compared with `==`", span, "`=` defines", also, fix=stop.edit(span, "=="))


def missing_comma(stop: Stop) -> Diagnostic | None:
    """Two things in brackets without a comma."""
    here, opens = stop.here, stop.opens()
    in_loop = not opens and stop.back(("for",)) is not None and "COMMA" in stop.expected
    if stop.ended or looks_new(stop) or not (opens or in_loop) or "COMMA" not in stop.expected or stop.wants_operand:
        return None
    if here.kind not in ("name", "number", "string") and here.text not in OPENERS:
        return None
    if here.text in ("for", "if", "else", "and", "or", "in", "by") or here.text == "{":
        return None
    if opens and stop.lexemes[opens[-1]].text == "{":
        return None
    return error("LF0117", f"a comma is missing before `{here.text}`", stop.span(stop.at), "two things side by side",
                 (stop.span(stop.at - 1), "after this"), fix=stop.insert(stop.before.end, ","))  # fmt: skip


KNOWN = (
    characters, strings, comments, numbers, other_signs, comprehensions, ranges, conditionals, python_words,
)  # fmt: skip
LATE = (equals, missing_comma)
