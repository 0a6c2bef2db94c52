-- Libraries of Python functions: what they refuse is raised at the script's line.
--
-- A function answers a number, true for the string in `slot`, a table of several values, or one of {err = text}. See
-- sandbox.lua for why it does not answer the string itself.

local tables, many, slot, spent = ...

local error, pairs, select, type, unpack = error, pairs, select, type, unpack

local DIRECT = 200 -- as in sandbox.lua
local MUCH = 10000 -- bytes of an argument; fewer are not counted

local function taken()
    local text = slot[1]
    slot[1] = false
    return text
end

local function count_text(text)
    if type(text) == "string" and #text > MUCH then spent(#text) end
end

local libraries = {}
for name, functions in pairs(tables) do
    local library = {}
    for called, implementation in pairs(functions) do
        library[called] = function(...)
            local first, second = ...
            count_text(first)
            count_text(second)
            local reply
            if select("#", ...) > DIRECT then
                reply = many(name, called, {...}, select("#", ...))
            else
                reply = implementation(...)
            end
            if reply == true then return taken() end
            if type(reply) ~= "table" then return reply end
            if reply.err then error(reply.err, 2) end
            return unpack(reply)
        end
    end
    libraries[name] = library
end
return libraries
