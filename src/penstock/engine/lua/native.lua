-- Libraries of Python functions: what they refuse is raised at the script's line.
--
-- A function answers a number, true for the string in `slot`, a table of several values, or one of {err = text}. See
-- sandbox.lua for why it does not answer the string itself.

local tables, slot, spent, outside = ...

local error, pairs, select, tonumber, type, unpack = error, pairs, select, tonumber, type, unpack

local MUCH = 10000 -- bytes of an argument; fewer are not counted

local function taken()
    local text = slot[1]
    slot[1] = false
    return text
end

local function count_text(text)
    if type(text) == "string" and #text > MUCH then spent(#text) end
end

local function answer(reply)
    if reply == true then return taken() end
    if type(reply) ~= "table" then return reply end
    if reply.err then error(reply.err, 3) end
    return unpack(reply)
end

-- Strings that are numbers become numbers here, as Lua reads them, and others "", which Python refuses as it would the
-- whole of them.
local function numbers(...)
    local count, given = select("#", ...), {...}
    for place = 1, count do
        local value = given[place]
        if type(value) == "string" then
            count_text(value)
            given[place] = tonumber(value) or ""
        end
    end
    return unpack(given, 1, count)
end

local libraries = {bit = {}, struct = {}}
for name, implementation in pairs(tables.bit) do
    local gathered = tables.bit_gathered[name]
    libraries.bit[name] = function(...)
        local first, second, third = ...
        local reply
        if third == nil and type(first) == "number" and type(second) ~= "string" then
            reply = outside(implementation, gathered, ...)
        else
            reply = outside(implementation, gathered, numbers(...))
        end
        if type(reply) == "number" then return reply end
        return (answer(reply))
    end
end
for name, implementation in pairs(tables.struct) do
    local gathered = tables.struct_gathered[name]
    libraries.struct[name] = function(...)
        local first, second = ...
        count_text(first)
        count_text(second)
        return answer(outside(implementation, gathered, ...))
    end
end
return libraries
