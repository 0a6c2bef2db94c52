-- The functions of Lua's own library that a script can use to crash or hold up stock Lua 5.1, made safe.
--
-- Each wrapper makes the checks that the C function lacks, and then calls it. The errors of a wrapper name the script's
-- line: a C function that may fail is called through pcall, and `relay` raises its message again.
--
--   unpack              adds up its bounds in an int (CVE-2025-46817)
--   string.find & co.   recurse on the C stack once for every item of a pattern; try without end (see patterns.lua)
--   string.gsub         calls C functions and looks into tables for as long as the text lasts
--   string.rep          adds one copy at a time; 2^31 copies of "" take seconds in which no other client is heard
--   table.maxn          goes through millions of elements in one call; so do others, which count them with `spent`
--   table.insert        moves 2^31 elements for a position of -2^31
--   table.insert, remove, sort   look past metatables, so they could write to a read-only table
--   table.sort          sorts millions, or long strings, in one call, in which no other client is heard; takes the
--                       square of the count where the order is a bad one
--   table.foreach & co. call C functions for as long as the table lasts
--   loadstring, load    run compiled chunks; call a reader while the parser holds an unprotected string
--                       (CVE-2025-49844); count long brackets in an int (CVE-2025-46819); and reserve too little stack
--                       for functions with both parameters and "..." (CVE-2014-5461), which `patched` corrects

local is_read_only, patched, is_internal, instead, MAX_PATTERN_OF_C, long_sort, spent, seed = ...

local error, pairs, pcall, rawget, select, tonumber, type = error, pairs, pcall, rawget, select, tonumber, type
local loadstring, real_load, unpack = loadstring, load, unpack
local byte, find, gsub, match, rep = string.byte, string.find, string.gsub, string.match, string.rep
local concat, insert, maxn, remove, sort = table.concat, table.insert, table.maxn, table.remove, table.sort
local log = math.log
local getinfo = debug.getinfo

local READ_ONLY = "Attempt to modify a readonly table"
local MAX_RESULTS = 8000 -- the C stack of Lua 5.1
local MAX_PATTERN = 1e6
local MAX_SOURCE = 2 ^ 24 -- bytes that C parses in one call of loadstring, which takes it a second
local MAX_STRING = 2 ^ 30 -- what a script may use in all, see scripting.py
local MAX_INT = 2147483647
local LONG_STRINGS = 2 ^ 28 -- bytes that C may compare in one call of table.sort, which takes it 20 to 100 ms
local LONG_TEXT = 1e6 -- bytes that C may replace one by one
local MANY = 2000 -- elements whose square of comparisons takes about a second
local MUCH = 10000 -- bytes, or elements, that one call goes through; fewer are not counted
local PARSED = 64 -- bytes that are copied in the time that C takes to parse one
local ELEMENT, ELEMENT_SORTED = 16, 256 -- bytes that are copied in the time that C takes to move one, or to sort it in

local library = {}

-- Raise what a C function complains about at the script's line, with the name that the script knows. What a function of
-- the script raised while C code called it has its line already.
local function raise(name, problem)
    if type(problem) ~= "string" or problem == "not enough memory" or find(problem, "^[^\n]-:%d+: ") then
        error(problem, 0)
    end
    error((gsub(problem, "'%?'", "'" .. name .. "'")), 4)
end

local function relay(name, ok, ...)
    if ok then return ... end
    raise(name, (...))
end
library.relay = relay

-- The same for functions that may be called as methods: Lua does not count the first argument of a method. Not for tail
-- calls: it looks at the function that calls it.
local function relay_method(name, ok, ...)
    if ok then return ... end
    local problem = ...
    if type(problem) == "string" and getinfo(2, "n").namewhat == "method" then
        problem = gsub(problem, "^bad argument #(%d+)", function(place) return "bad argument #" .. place - 1 end)
        problem = gsub(problem, "^bad argument #0 to '.-'", "calling '" .. name .. "' on bad self")
    end
    raise(name, problem)
end

local function same(...) return ... end

function library.unpack(...)
    local items, first, last = ...
    if type(items) ~= "table" then return relay("unpack", pcall(unpack, ...)) end
    first, last = first == nil and 1 or tonumber(first), last == nil and #items or tonumber(last)
    if first and last then
        if first > last then return end
        if not (first >= -MAX_INT and last <= MAX_INT and last - first < MAX_RESULTS) then
            error("too many results to unpack", 2)
        end
        if last - first < 1000 then return unpack(items, first, last) end
    end
    return relay("unpack", pcall(unpack, ...))
end

-- string ----------------------------------------------------------------------------------------------------------

local strings = {}
for name, value in pairs(string) do strings[name] = value end
library.string = strings

-- Our own functions recurse in Lua, which has an end too.
local function too_complex(ok, ...)
    local problem = ...
    if not ok and type(problem) == "string" and find(problem, "^patterns%.lua:%d+: stack overflow") then
        return false, "pattern too complex"
    end
    return ok, ...
end

-- What C calls for each place in a long text, or each element of a long table, so that the hook is called too.
local function in_lua(replacement)
    if type(replacement) == "table" then
        return function(first) return replacement[first] end
    elseif type(replacement) == "function" and getinfo(replacement, "S").what == "C" then
        return function(...) return (replacement(...)) end
    end
    return replacement
end

for _, name in pairs({"find", "match", "gmatch", "gfind", "gsub"}) do
    local real = string[name]
    strings[name] = function(...)
        local text, pattern, third, fourth = ...
        local called = real
        if type(pattern) == "string" then
            local longest = type(text) == "string" and MAX_PATTERN or MAX_PATTERN_OF_C
            if #pattern > longest and not (name == "find" and fourth) then error("pattern too complex", 2) end
            if type(text) == "string" then
                if #text > MUCH then spent(#text) end
                called = instead(name, text, pattern, third, fourth) or real
                if name == "gsub" and #text > LONG_TEXT then
                    return same(relay_method(name, too_complex(
                        pcall(called, text, pattern, in_lua(third), select(4, ...))
                    )))
                end
            end
        end
        return same(relay_method(name, too_complex(pcall(called, ...))))
    end
end

function strings.rep(...)
    local text, count = ...
    local number = tonumber(count)
    if type(text) == "number" then text = text .. "" end
    if type(text) ~= "string" or not number then return same(relay_method("rep", pcall(rep, ...))) end
    if text == "" or not (number >= 1) then return "" end
    if #text * number > MAX_STRING then error("not enough memory", 2) end
    number = number - number % 1
    if #text * number > MUCH then spent(#text * number) end
    if number < 1000 then return rep(text, number) end
    local block = rep(text, 1000)
    return rep(block, (number - number % 1000) / 1000) .. rep(text, number % 1000)
end

-- table -----------------------------------------------------------------------------------------------------------

local tables = {}
for name, value in pairs(table) do tables[name] = value end
library.table = tables

-- Counts the elements of a long table that a call goes through.
local function count_elements(items, each)
    if type(items) == "table" and #items > MUCH then spent(#items * each) end
end

function tables.maxn(...)
    count_elements((...), ELEMENT)
    return relay("maxn", pcall(maxn, ...))
end

function tables.concat(...)
    count_elements((...), ELEMENT)
    return same(relay("concat", pcall(concat, ...)))
end

function tables.insert(...)
    local items, position = ...
    local count = select("#", ...)
    if is_read_only(items) then error(READ_ONLY, 2) end
    if type(items) ~= "table" then return relay("insert", pcall(insert, ...)) end
    if count == 2 then return insert(items, position) end
    local number = tonumber(position)
    if count == 3 and number and not (number >= -MAX_RESULTS and number <= MAX_INT) then
        error("bad argument #2 to 'insert' (position out of bounds)", 2)
    end
    count_elements(items, ELEMENT)
    return relay("insert", pcall(insert, ...))
end

function tables.remove(...)
    if is_read_only((...)) then error(READ_ONLY, 2) end
    if select("#", ...) > 1 then count_elements((...), ELEMENT) end
    return relay("remove", pcall(remove, ...))
end

for _, name in pairs({"foreach", "foreachi"}) do
    local real = table[name]
    tables[name] = function(items, called, ...)
        if type(items) == "table" and #items > MUCH then called = in_lua(called) end
        return same(relay(name, pcall(real, items, called, ...)))
    end
end

-- Lua calls no hook while C compares two elements, but while a function in Lua does.
local function is_less(one, other)
    if type(one) == "string" and #one > MUCH then spent(#one) end
    return one < other
end

-- Whether C may take seconds: it compares an element with others about as often as the count has binary digits. What
-- compares tables may be any function of C. True also where a script could see in which order equal elements come, or
-- where an error leaves them, and so how `mix` mixes.
local function is_to_sort_in_lua(items)
    local count, bytes, first = #items, 0, type(rawget(items, 1))
    if count > long_sort or (first ~= "number" and first ~= "string") then return true end
    for place = 1, count do
        local item = rawget(items, place)
        if type(item) ~= first or item ~= item or (item == 0 and 1 / item < 0) then return true end
        if first == "string" then bytes = bytes + #item end
    end
    return bytes > MUCH and bytes * log(count) / log(2) > LONG_STRINGS
end

-- C's sort takes the square of the count for elements in an order that somebody has worked out for it: hours for a
-- million. So many are mixed before, by numbers that no script knows. None of the elements is nil.
local function mix(items)
    for place = #items, 2, -1 do
        seed = seed * 16807 % MAX_INT
        local other = 1 + seed % place
        items[other], items[place] = items[place], items[other]
    end
end

local function without_our_line(ok, problem)
    if type(problem) == "string" then problem = gsub(problem, "^library%.lua:%d+: ", "") end
    return ok, problem
end

function tables.sort(...)
    local items, before = ...
    if is_read_only(items) then error(READ_ONLY, 2) end
    if type(items) ~= "table" or not (before == nil or type(before) == "function") then
        return relay("sort", pcall(sort, ...))
    end
    if before ~= nil then return relay("sort", pcall(sort, items, in_lua(before))) end
    if is_to_sort_in_lua(items) then return relay("sort", without_our_line(pcall(sort, items, is_less))) end
    if #items > MANY then mix(items) end
    count_elements(items, ELEMENT_SORTED)
    return relay("sort", pcall(sort, items))
end

-- loading ---------------------------------------------------------------------------------------------------------

function library.loadstring(...)
    local source, name = ...
    if type(source) == "string" then
        if byte(source) == 27 then return nil, "attempt to load a binary chunk" end
        if #source > MAX_SOURCE then return nil, "chunk is too long" end
        spent(PARSED * #source)
        if type(name) == "string" then name = match(name, "^[^%z]*") end -- as much of it as C sees
        if is_internal(name) then name = "=(load)" end
        local chunk, problem = relay("loadstring", pcall(loadstring, source, name))
        if not chunk then return chunk, problem end
        if find(source, "...", 1, true) then return patched(chunk) end
        return chunk
    end
    return relay("loadstring", pcall(loadstring, ...))
end

function library.load(...)
    local reader, name = ...
    if type(reader) ~= "function" then return relay("load", pcall(real_load, ...)) end
    local pieces = {}
    for piece in reader do
        if type(piece) ~= "string" then error("reader function must return a string", 2) end
        if piece == "" then break end
        pieces[#pieces + 1] = piece
    end
    return library.loadstring(concat(pieces), name == nil and "=(load)" or name)
end

return library
