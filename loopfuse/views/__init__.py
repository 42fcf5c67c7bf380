"""How compilations are shown: diffs, tables of passes, decisions, costs. Text in, text out; shared by all faces."""
