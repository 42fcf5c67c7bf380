"""The grammar of the language; `loopfuse.frontend.lalr` reads it."""
