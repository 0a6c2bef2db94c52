-- string.find, match, gmatch and gsub for patterns that may keep Lua's own functions busy without end.
--
-- Lua matches by trying: ('a?'):rep(30) .. ('a'):rep(30) has a billion ways to fit, and a*b looks through a long text
-- once for each place in it. A call of a C function cannot be interrupted, so all other clients would wait and SCRIPT
-- KILL would have no effect. `most` returns the length of text up to which a pattern is harmless. For longer texts the
-- functions here do the same in Lua, forty times slower, where the hook that looks at the clock is called.

local spent = ...

local error, pairs, pcall, tonumber, type, unpack = error, pairs, pcall, tonumber, type, unpack
local byte, char, find, match, sub = string.byte, string.char, string.find, string.match, string.sub
local ceil, concat, floor, huge, log, max = math.ceil, table.concat, math.floor, math.huge, math.log, math.max

local MAX_STEPS = 1e8 -- one or two seconds of Lua's own functions; a script is not called slow before it had five
local MAX_PLAIN = 2e10 -- bytes to compare, in about the same time
local MAX_CAPTURES = 32
local MAX_REPLACED = 1e9 -- bytes of replacements that C goes through in one call of gsub, in about the same time
local A_REPLACEMENT = 10 -- what calling one counts for
local A_STEP = 40 -- bytes that are copied in the time of a step
local FEW = 0.01 -- of the steps of a match: fewer are not counted
local SHORT = 100 -- bytes that are compared in no time
local MAX_KNOWN, MAX_KNOWN_SIZE = 500, 1000 -- patterns whose harmless length is remembered, and how long they may be
local OPEN, POSITION = -1, -2 -- in place of the end of a capture

-- items of a pattern ----------------------------------------------------------------------------------------------

-- The place after the one character, class or set at a place; or nil and what is wrong with it.
local function after_single(pattern, at)
    local first = sub(pattern, at, at)
    if first == "%" then
        if at == #pattern then return nil, "malformed pattern (ends with '%')" end
        return at + 2
    end
    if first ~= "[" then return at + 1 end
    at = at + 1
    if sub(pattern, at, at) == "^" then at = at + 1 end
    repeat -- a ] in the first place is one of the set
        if at > #pattern then return nil, "malformed pattern (missing ']')" end
        at = at + (sub(pattern, at, at) == "%" and 2 or 1)
    until sub(pattern, at, at) == "]"
    return at + 1
end

-- The items of a pattern: {kind, text of it, quantifier}; and whether it only fits at the start of a text. A malformed
-- item is an error when it is reached, as it is in C.
local function parse(pattern, may_anchor)
    pattern = match(pattern, "^[^%z]*") -- as much of it as C sees
    local items, at = {}, 1
    local anchored = may_anchor and byte(pattern) == 94
    if anchored then at = 2 end
    while at <= #pattern do
        local two = sub(pattern, at, at + 1)
        local first = sub(two, 1, 1)
        local item, next_at, problem
        if two == "()" then
            item, next_at = {"position"}, at + 2
        elseif first == "(" then
            item, next_at = {"open"}, at + 1
        elseif first == ")" then
            item, next_at = {"close"}, at + 1
        elseif first == "$" and at == #pattern then
            item, next_at = {"end"}, at + 1
        elseif two == "%b" then
            if at + 3 > #pattern then problem = "unbalanced pattern" end
            item, next_at = {"balance", sub(pattern, at + 2, at + 3)}, at + 4
        elseif two == "%f" then
            next_at, problem = after_single(pattern, at + 2)
            if sub(pattern, at + 2, at + 2) ~= "[" then problem = "missing '[' after '%f' in pattern" end
            item = {"frontier", sub(pattern, at + 2, (next_at or 0) - 1)}
        elseif find(two, "^%%%d") then
            item, next_at = {"back", tonumber(sub(two, 2))}, at + 2
        else
            next_at, problem = after_single(pattern, at)
            local quantifier = not problem and match(pattern, "^[*+?-]", next_at)
            item = {"single", sub(pattern, at, (next_at or 0) - 1), quantifier}
            if quantifier then next_at = next_at + 1 end
        end
        items[#items + 1] = problem and {"malformed", problem} or item
        if problem then break end
        at = next_at
    end
    return items, anchored
end

-- how long it may take ---------------------------------------------------------------------------------------------

-- How many steps a match in a text of a length takes at most. Each repeated item ends at any place after the one before
-- it; the last item of a pattern is tried once.
local function steps(items, anchored, length)
    local last = #items
    while last > 0 and items[last][1] == "close" do last = last - 1 end
    local total, choices = 1 + last / 16, 0
    local function choose()
        choices = choices + 1
        total = total * (length + choices) / choices
    end
    if not anchored then choose() end
    for at = 1, last do
        local kind, text, quantifier = unpack(items[at], 1, 3)
        if kind == "balance" or kind == "back" then
            total = total * length
        elseif quantifier == "?" then
            if at < last then total = total * 2 end
        elseif quantifier and at < last then
            choose()
        end
        if text and kind ~= "back" then total = total * (1 + #text / 64) end
    end
    return total
end

local known, powers, count = {}, {}, 0

-- The length of the longest text that Lua's own functions may look for a pattern in; and with which power of the length
-- the steps grow there.
local function most(pattern)
    local length, power = known[pattern], powers[pattern]
    if length then return length, power end
    if not find(pattern, "[-*+?]") and not find(pattern, "%%[b%d]") then
        length, power = 10 * MAX_STEPS / max(#pattern, 1), 1
    else
        local items, anchored = parse(pattern, true)
        length = 1
        while length < 2 ^ 30 and steps(items, anchored, length * 1.25) <= MAX_STEPS do length = length * 1.25 end
        power = log(steps(items, anchored, length) / steps(items, anchored, length / 2)) / log(2)
    end
    if #pattern <= MAX_KNOWN_SIZE then
        if count == MAX_KNOWN then known, powers, count = {}, {}, 0 end
        known[pattern], powers[pattern], count = length, power, count + 1
    end
    return length, power
end

-- matching ---------------------------------------------------------------------------------------------------------

-- The characters that a class or a set has, by their numbers.
local function members(class)
    local found = {}
    if #class == 1 and class ~= "." then return {[byte(class)] = true} end
    for number = 0, 255 do
        if find(char(number), "^" .. class) then found[number] = true end
    end
    return found
end

-- A function that looks for the items at a place, and answers where what fits ends; and one that gives a capture.
local function matcher(text, items)
    local length, sets = #text, {}
    local starts, ends, level = {}, {}, 0
    for _, item in pairs(items) do
        local kind, class = item[1], item[2]
        if (kind == "single" or kind == "frontier") and not sets[class] then sets[class] = members(class) end
    end

    local function balanced(at, marks)
        if sub(text, at, at) ~= sub(marks, 1, 1) then return nil end
        local open, close = byte(marks, 1, 2)
        local depth = 1
        for place = at + 1, length do
            local number = byte(text, place)
            if number == close then
                depth = depth - 1
                if depth == 0 then return place + 1 end
            elseif number == open then
                depth = depth + 1
            end
        end
    end

    local fits

    local function fits_capture(at, index, finish)
        if level == MAX_CAPTURES then error("too many captures", 0) end
        level = level + 1
        starts[level], ends[level] = at, finish
        local stop = fits(at, index + 1)
        if not stop then level = level - 1 end
        return stop
    end

    local function fits_close(at, index)
        local which = level
        while which > 0 and ends[which] ~= OPEN do which = which - 1 end
        if which == 0 then error("invalid pattern capture", 0) end
        ends[which] = at
        local stop = fits(at, index + 1)
        if not stop then ends[which] = OPEN end
        return stop
    end

    function fits(at, index)
        while true do
            local item = items[index]
            if not item then return at end
            local kind, what, quantifier = item[1], item[2], item[3]
            if kind == "single" then
                local set = sets[what]
                if not quantifier then
                    if not set[byte(text, at)] then return nil end
                    at = at + 1
                elseif quantifier == "?" then
                    if set[byte(text, at)] then
                        local stop = fits(at + 1, index + 1)
                        if stop then return stop end
                    end
                elseif quantifier == "-" then
                    while true do
                        local stop = fits(at, index + 1)
                        if stop then return stop end
                        if not set[byte(text, at)] then return nil end
                        at = at + 1
                    end
                else
                    local stop = at
                    while set[byte(text, stop)] do stop = stop + 1 end
                    for place = stop, quantifier == "+" and at + 1 or at, -1 do
                        local found = fits(place, index + 1)
                        if found then return found end
                    end
                    return nil
                end
            elseif kind == "open" then
                return fits_capture(at, index, OPEN)
            elseif kind == "position" then
                return fits_capture(at, index, POSITION)
            elseif kind == "close" then
                return fits_close(at, index)
            elseif kind == "end" then
                return at == length + 1 and at or nil
            elseif kind == "frontier" then
                local set = sets[what]
                if set[at > 1 and byte(text, at - 1) or 0] or not set[byte(text, at) or 0] then return nil end
            elseif kind == "balance" then
                at = balanced(at, what)
                if not at then return nil end
            elseif kind == "malformed" then
                error(what, 0)
            else
                if what < 1 or what > level or ends[what] == OPEN then error("invalid capture index", 0) end
                if ends[what] == POSITION then return nil end
                local size = ends[what] - starts[what]
                if size > length - at + 1 then return nil end
                local captured = sub(text, starts[what], starts[what] + size - 1)
                if captured ~= sub(text, at, at + size - 1) then return nil end
                at = at + size
            end
            index = index + 1
        end
    end

    local function captured(which, at, stop)
        if which > level then
            if which > 1 then error("invalid capture index", 0) end
            return sub(text, at, stop - 1)
        end
        if ends[which] == OPEN then error("unfinished capture", 0) end
        if ends[which] == POSITION then return starts[which] end
        return sub(text, starts[which], ends[which] - 1)
    end

    -- All captures, or what fits as a whole if there are none and `whole` is asked for.
    local function all(at, stop, whole)
        local values = {}
        local many = (level == 0 and whole) and 1 or level
        for which = 1, many do values[which] = captured(which, at, stop) end
        return unpack(values, 1, many)
    end

    return function(at)
        level = 0
        return fits(at, 1)
    end, captured, all
end

-- the functions of string ------------------------------------------------------------------------------------------

local OUT_OF_RANGE = 2 ^ 63 -- C makes the least integer of what is as large, and of what is no number

local function from(text, start)
    if not (start > -OUT_OF_RANGE and start < OUT_OF_RANGE) then return 1 end
    start = start >= 0 and floor(start) or ceil(start)
    if start < 0 then start = #text + start + 1 end
    return start < 1 and 1 or start > #text and #text + 1 or start
end

-- Where a pattern first fits, from a place on, and all captures.
local function first(text, pattern, start, whole, answer)
    local items, anchored = parse(pattern, true)
    local fit, _, all = matcher(text, items)
    for at = from(text, start), anchored and from(text, start) or #text + 1 do
        local stop = fit(at)
        if stop then return answer(at, stop, all(at, stop, whole)) end
    end
    return nil
end

local functions = {}

function functions.find(text, pattern, start)
    return first(text, pattern, tonumber(start or 1), false, function(at, stop, ...) return at, stop - 1, ... end)
end

function functions.match(text, pattern, start)
    return first(text, pattern, tonumber(start or 1), true, function(_, _, ...) return ... end)
end

local function at_line(ok, ...)
    if ok then return ... end
    error((...), type((...)) == "string" and 3 or 0)
end

function functions.gmatch(text, pattern)
    local fit, _, all = matcher(text, (parse(pattern, false)))
    local next_at = 1
    local function step()
        for at = next_at, #text + 1 do
            local stop = fit(at)
            if stop then
                next_at = stop == at and stop + 1 or stop
                return all(at, stop, true)
            end
        end
        next_at = #text + 2
        return nil
    end
    return function() return at_line(pcall(step)) end
end
functions.gfind = functions.gmatch

-- What a replacement says for one place.
local function replaced(replacement, at, stop, captured, all)
    local kind = type(replacement)
    if kind == "function" then return (replacement(all(at, stop, true))) end
    if kind == "table" then return replacement[captured(1, at, stop)] end
    local pieces, place = {}, 1
    while place <= #replacement do
        local one = sub(replacement, place, place)
        if one == "%" then
            place = place + 1
            one = sub(replacement, place, place)
            if one == "" then
                one = "\0" -- C sees the end of the string
            elseif one == "0" then
                one = captured(0, at, stop)
            elseif find(one, "^%d") then
                one = captured(tonumber(one), at, stop)
            end
        end
        pieces[#pieces + 1] = one
        place = place + 1
    end
    return concat(pieces)
end

-- A number as an int of C, which has the lower 32 bits of it.
local function as_int(number)
    if not (number > -OUT_OF_RANGE and number < OUT_OF_RANGE) then return 0 end
    local bits = (number >= 0 and floor(number) or ceil(number)) % 2 ^ 32
    return bits >= 2 ^ 31 and bits - 2 ^ 32 or bits
end

function functions.gsub(text, pattern, replacement, limit)
    limit = limit == nil and huge or as_int(tonumber(limit))
    if type(replacement) == "number" then replacement = replacement .. "" end
    local items, anchored = parse(pattern, true)
    local fit, captured, all = matcher(text, items)
    local function part(which, at, stop)
        if which == 0 then return sub(text, at, stop - 1) end
        return captured(which, at, stop)
    end
    local pieces, at, done = {}, 1, 0
    while done < limit do
        local stop = fit(at)
        if stop then
            done = done + 1
            local value = replaced(replacement, at, stop, part, all)
            if not value then
                value = sub(text, at, stop - 1)
            elseif type(value) ~= "string" and type(value) ~= "number" then
                error("invalid replacement value (a " .. type(value) .. ")", 0)
            end
            pieces[#pieces + 1] = value
        end
        if stop and stop > at then
            at = stop
        elseif at <= #text then
            pieces[#pieces + 1] = sub(text, at, at)
            at = at + 1
        else
            break
        end
        if anchored then break end
    end
    pieces[#pieces + 1] = sub(text, at)
    return concat(pieces), done
end

-- string.find of a long text that is no pattern, in a text that may have its beginning in every place.
function functions.plain(text, wanted, start)
    local at, head = from(text, tonumber(start or 1)), sub(wanted, 1, SHORT)
    while true do
        at = find(text, head, at, true)
        if not at then return nil end
        if sub(text, at, at + #wanted - 1) == wanted then return at, at + #wanted - 1 end
        at = at + 1
    end
end

-- Lua's own functions recurse on the C stack once for every item of a pattern, so they get none that is longer.
local MAX_PATTERN_OF_C = 10000
local REPLACEMENTS = {["string"] = true, number = true, table = true, ["function"] = true}

-- What to call in place of a function of string, nil if that is harmless, or refuses its arguments.
local function instead(name, text, pattern, third, fourth)
    if name == "find" and fourth then
        if #pattern <= SHORT or #text * #pattern <= MAX_PLAIN then return nil end
        return (third == nil or tonumber(third)) and functions.plain
    end
    local iterates = name == "gmatch" or name == "gfind"
    -- Only for an iterator is ^ a character like others.
    local measured = iterates and byte(pattern) == 94 and "." .. pattern or pattern
    local is_long = #pattern > MAX_PATTERN_OF_C
    if not is_long then
        local length, power = most(measured)
        local share = (#text / length) ^ power
        if share > FEW then spent(share * MAX_STEPS * A_STEP) end
        is_long = #text > length
    end
    if name == "gsub" and (type(third) == "string" or type(third) == "number") then
        local size = (#text + 1) * (A_REPLACEMENT + #(third .. ""))
        if size > MAX_REPLACED then
            is_long = true
        elseif size > FEW * MAX_REPLACED then
            spent(size)
        end
    end
    if not is_long then return nil end
    if name == "gsub" then
        return REPLACEMENTS[type(third)] and (fourth == nil or tonumber(fourth)) and functions.gsub
    end
    return (iterates or third == nil or tonumber(third)) and functions[name]
end

return instead, functions, MAX_PATTERN_OF_C
