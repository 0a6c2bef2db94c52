"""What scripts run in: the sandbox and cjson, cmsgpack in Lua, bit and struct in Python.

A library whose values are tables is written in Lua, because crossing between the languages costs more than the work;
one whose values are numbers and strings is written in Python, because Lua 5.1 has neither integers nor their bits.
"""
