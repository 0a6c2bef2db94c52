-- JSON with the limits, number formats and error texts of the cjson library that Redis carries.
--
-- Errors inside are raised without a position and raised again by the two entry points, so that they name the
-- script's line.

local null, spent = ...

local error, next, pcall, rawget, select, tonumber, type = error, next, pcall, rawget, select, tonumber, type
local byte, char, find, format, gsub, lower, match, sub =
    string.byte, string.char, string.find, string.format, string.gsub, string.lower, string.match, string.sub
local concat, floor, huge = table.concat, math.floor, math.huge

local PIECE = 2 ^ 17
local ESCAPED = 16 -- bytes that are copied in the time that C takes to escape one

local function fail(text) error(text, 0) end

local function new()
    local cjson = {null = null, _NAME = "cjson", _VERSION = "2.1.0"}
    local encode_depth, decode_depth, precision = 1000, 1000, 14
    local sparse_convert, sparse_ratio, sparse_safe = false, 2, 10
    local encode_invalid, decode_invalid = false, true

    -- encoding ------------------------------------------------------------------------------------------------

    local escapes = {
        ['"'] = '\\"', ["\\"] = "\\\\", ["/"] = "\\/", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r",
        ["\t"] = "\\t",
    }
    for code = 0, 127 do
        local letter = char(code)
        if find(letter, "[%c%z]") then escapes[letter] = escapes[letter] or format("\\u%04x", code) end
    end

    -- A table, not a function: for each letter gsub would call it. A long text goes in pieces, so that the clock is
    -- looked at in between.
    local function quoted(text)
        if #text <= PIECE then return '"' .. gsub(text, '[%c%z"\\/\127]', escapes) .. '"' end
        local pieces = {}
        for first = 1, #text, PIECE do
            spent(PIECE * ESCAPED)
            pieces[#pieces + 1] = gsub(sub(text, first, first + PIECE - 1), '[%c%z"\\/\127]', escapes)
        end
        return '"' .. concat(pieces) .. '"'
    end

    local function number_text(number)
        if number ~= number or number == huge or number == -huge then
            if encode_invalid == "null" then return "null" end
            if not encode_invalid then fail("Cannot serialise number: must not be NaN or Inf") end
        end
        return format("%." .. precision .. "g", number)
    end

    -- The length of an array, or nil when the table is an object.
    local function array_length(items)
        local longest, count = 0, 0
        for key in next, items do
            if type(key) ~= "number" or key < 1 or floor(key) ~= key then return nil end
            if key > longest then longest = key end
            count = count + 1
        end
        if sparse_ratio > 0 and longest > count * sparse_ratio and longest > sparse_safe then
            if not sparse_convert then fail("Cannot serialise table: excessively sparse array") end
            return nil
        end
        return longest > 0 and longest or nil
    end

    local append

    local function append_table(items, pieces, depth)
        if depth > encode_depth then fail("Cannot serialise, excessive nesting (" .. depth .. ")") end
        local length = array_length(items)
        if length then
            pieces[#pieces + 1] = "["
            for at = 1, length do
                if at > 1 then pieces[#pieces + 1] = "," end
                append(rawget(items, at), pieces, depth)
            end
            pieces[#pieces + 1] = "]"
            return
        end
        pieces[#pieces + 1] = "{"
        local first = true
        for key, value in next, items do
            if type(key) == "number" then
                key = '"' .. number_text(key) .. '":'
            elseif type(key) == "string" then
                key = quoted(key) .. ":"
            else
                fail("Cannot serialise " .. type(key) .. ": table key must be a number or string")
            end
            pieces[#pieces + 1] = first and key or "," .. key
            first = false
            append(value, pieces, depth)
        end
        pieces[#pieces + 1] = "}"
    end

    function append(value, pieces, depth)
        local kind = type(value)
        if kind == "string" then
            pieces[#pieces + 1] = quoted(value)
        elseif kind == "number" then
            pieces[#pieces + 1] = number_text(value)
        elseif kind == "table" then
            append_table(value, pieces, depth + 1)
        elseif kind == "boolean" then
            pieces[#pieces + 1] = value and "true" or "false"
        elseif value == nil or value == null then
            pieces[#pieces + 1] = "null"
        else
            fail("Cannot serialise " .. kind .. ": type not supported")
        end
    end

    function cjson.encode(...)
        if select("#", ...) ~= 1 then error("bad argument #1 to 'encode' (expected 1 argument)", 2) end
        local pieces = {}
        local ok, problem = pcall(append, (...), pieces, 0)
        if not ok then error(problem, 2) end
        return concat(pieces)
    end

    -- decoding ------------------------------------------------------------------------------------------------

    local function utf8(code)
        if code < 0x80 then return char(code) end
        if code < 0x800 then return char(0xC0 + floor(code / 64), 0x80 + code % 64) end
        local low = char(0x80 + floor(code / 64) % 64, 0x80 + code % 64)
        if code < 0x10000 then return char(0xE0 + floor(code / 4096)) .. low end
        return char(0xF0 + floor(code / 262144), 0x80 + floor(code / 4096) % 64) .. low
    end

    local unescapes = {
        ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t",
    }

    local kinds = {
        ["{"] = "T_OBJ_BEGIN", ["}"] = "T_OBJ_END", ["["] = "T_ARR_BEGIN", ["]"] = "T_ARR_END", [":"] = "T_COLON",
        [","] = "T_COMMA",
    }

    -- A token: its kind (or what is wrong with it), its value, where it starts, where the next may start.
    local function string_token(text, start)
        local at, pieces = start + 1, {}
        while true do
            local stop = find(text, '["\\]', at)
            if not stop then return "unexpected end of string", nil, #text + 1 end
            pieces[#pieces + 1] = sub(text, at, stop - 1)
            if byte(text, stop) == 34 then return "T_STRING", concat(pieces), start, stop + 1 end
            local letter = sub(text, stop + 1, stop + 1)
            at = stop + 2
            if letter == "u" then
                local code = tonumber(match(text, "^%x%x%x%x", at) or "", 16)
                at = at + 4
                if code and code >= 0xD800 and code < 0xE000 then
                    local low = code < 0xDC00 and tonumber(match(text, "^\\u([dD][c-fC-F]%x%x)", at) or "", 16)
                    code = low and 0x10000 + (code - 0xD800) * 1024 + low - 0xDC00
                    at = at + 6
                end
                if not code then return "invalid unicode escape code", nil, stop end
                pieces[#pieces + 1] = utf8(code)
            elseif unescapes[letter] then
                pieces[#pieces + 1] = unescapes[letter]
            else
                return "invalid escape code", nil, stop
            end
        end
    end

    local words = {
        t = {"^true", "T_BOOLEAN", true}, f = {"^false", "T_BOOLEAN", false}, n = {"^null", "T_NULL", null},
    }

    local function odd_number(text, start)
        local sign, digits = match(text, "^([-+]?)0[xX](%x+)", start)
        if digits then return (sign == "-" and -1 or 1) * tonumber(digits, 16), #sign + 2 + #digits end
        local word = lower(match(text, "^[-+]?(%a*)", start))
        sign = match(text, "^[-+]?", start)
        for _, name in next, {"infinity", "inf", "nan"} do
            if sub(word, 1, #name) == name then
                local value = name == "nan" and -(0 / 0) or huge
                return sign == "-" and -value or value, #sign + #name
            end
        end
    end

    local function number_token(text, start)
        local value, length = nil, 0
        if decode_invalid then value, length = odd_number(text, start) end
        if not value then
            -- In two steps: a pattern with an exponent tries to split a long number without one at every digit.
            local digits = match(text, "^[-+]?%d+%.?%d*", start)
            if digits then
                digits = digits .. (match(text, "^[eE][-+]?%d+", start + #digits) or "")
            else
                digits = match(text, "^[-+]%.%d+", start)
            end
            value, length = tonumber(digits or ""), #(digits or "")
            if digits and not value then value = tonumber((gsub(digits, "^%+", ""))) end
        end
        if not value then
            return find(text, "^[-+]", start) and "invalid number" or "invalid token", nil, start
        end
        return "T_NUMBER", value, start, start + length
    end

    local function token(text, from)
        local start = find(text, "[^ \t\r\n]", from)
        if not start then return "T_END", nil, #text + 1, #text + 1 end
        local letter = sub(text, start, start)
        if kinds[letter] then return kinds[letter], nil, start, start + 1 end
        if letter == '"' then return string_token(text, start) end
        local word = words[letter]
        if word and find(text, word[1], start) then return word[2], word[3], start, start + #word[1] - 1 end
        if find(letter, "[%d%-+nNiI]") then return number_token(text, start) end
        return "invalid token", nil, start
    end

    local function expected(what, kind, start)
        fail("Expected " .. what .. " but found " .. kind .. " at character " .. start)
    end

    local value_at

    local function check_depth(depth, start)
        if depth > decode_depth then
            fail("Found too many nested data structures (" .. depth .. ") at character " .. start)
        end
    end

    local function object_at(text, at, depth)
        local object, _ = {}
        local kind, key, start, after = token(text, at)
        if kind == "T_OBJ_END" then return object, after end
        while true do
            if kind ~= "T_STRING" then expected("object key string", kind, start) end
            kind, _, start, after = token(text, after)
            if kind ~= "T_COLON" then expected("colon", kind, start) end
            object[key], after = value_at(text, after, depth)
            kind, _, start, after = token(text, after)
            if kind == "T_OBJ_END" then return object, after end
            if kind ~= "T_COMMA" then expected("comma or object end", kind, start) end
            kind, key, start, after = token(text, after)
        end
    end

    local function array_at(text, at, depth)
        local array, count = {}, 0
        local kind, _, start, after = token(text, at)
        if kind == "T_ARR_END" then return array, after end
        after = at
        while true do
            count = count + 1
            array[count], after = value_at(text, after, depth)
            kind, _, start, after = token(text, after)
            if kind == "T_ARR_END" then return array, after end
            if kind ~= "T_COMMA" then expected("comma or array end", kind, start) end
        end
    end

    function value_at(text, at, depth)
        local kind, value, start, after = token(text, at)
        if kind == "T_STRING" or kind == "T_NUMBER" or kind == "T_BOOLEAN" or kind == "T_NULL" then
            return value, after
        elseif kind == "T_OBJ_BEGIN" then
            check_depth(depth + 1, start)
            return object_at(text, after, depth + 1)
        elseif kind == "T_ARR_BEGIN" then
            check_depth(depth + 1, start)
            return array_at(text, after, depth + 1)
        end
        expected("value", kind, start)
    end

    local function whole(text)
        local value, after = value_at(text, 1, 0)
        local kind, _, start = token(text, after)
        if kind ~= "T_END" then expected("the end", kind, start) end
        return value
    end

    function cjson.decode(...)
        if select("#", ...) ~= 1 then error("bad argument #1 to 'decode' (expected 1 argument)", 2) end
        local text = ...
        if type(text) == "number" then text = format("%.14g", text) end
        if type(text) ~= "string" then
            error("bad argument #1 to 'decode' (string expected, got " .. type(text) .. ")", 2)
        end
        spent(#text)
        local ok, value = pcall(whole, text)
        if not ok then error(value, 2) end
        return value
    end

    -- settings ------------------------------------------------------------------------------------------------

    -- They hold for every script that follows, so a value that cannot be used must not get in.

    local function bad(place, name, problem)
        error("bad argument #" .. place .. " to '" .. name .. "' (" .. problem .. ")", 4)
    end

    local function check_count(name, most, ...)
        if select("#", ...) > most then bad(most + 1, name, "found too many arguments") end
    end

    local function whole_number(name, value, current, low, high)
        if value == nil then return current end
        local number = tonumber(value)
        if not number then bad(1, name, "number expected, got " .. type(value)) end
        number = floor(number)
        if not (number >= low and number <= high) then
            bad(1, name, "expected integer between " .. low .. " and " .. format("%d", high))
        end
        return number
    end

    local function choice(name, value, current, other)
        if value == nil then return current end
        if value == true or value == "on" then return true end
        if value == false or value == "off" then return false end
        if other and value == other then return other end
        if type(value) ~= "string" and type(value) ~= "number" then
            bad(1, name, "string expected, got " .. type(value))
        end
        bad(1, name, "invalid option '" .. value .. "'")
    end

    function cjson.encode_max_depth(...)
        check_count("encode_max_depth", 1, ...)
        encode_depth = whole_number("encode_max_depth", (...), encode_depth, 1, 2147483647)
        return encode_depth
    end

    function cjson.decode_max_depth(...)
        check_count("decode_max_depth", 1, ...)
        decode_depth = whole_number("decode_max_depth", (...), decode_depth, 1, 2147483647)
        return decode_depth
    end

    function cjson.encode_number_precision(...)
        check_count("encode_number_precision", 1, ...)
        precision = whole_number("encode_number_precision", (...), precision, 1, 14)
        return precision
    end

    local keep_buffer = true

    function cjson.encode_keep_buffer(...)
        check_count("encode_keep_buffer", 1, ...)
        keep_buffer = choice("encode_keep_buffer", (...), keep_buffer)
        return keep_buffer
    end

    function cjson.encode_invalid_numbers(...)
        check_count("encode_invalid_numbers", 1, ...)
        encode_invalid = choice("encode_invalid_numbers", (...), encode_invalid, "null")
        return encode_invalid
    end

    function cjson.decode_invalid_numbers(...)
        check_count("decode_invalid_numbers", 1, ...)
        decode_invalid = choice("decode_invalid_numbers", (...), decode_invalid)
        return decode_invalid
    end

    function cjson.encode_sparse_array(...)
        check_count("encode_sparse_array", 3, ...)
        local convert, ratio, safe = ...
        convert = choice("encode_sparse_array", convert, sparse_convert)
        ratio = whole_number("encode_sparse_array", ratio, sparse_ratio, 0, 2147483647)
        sparse_safe = whole_number("encode_sparse_array", safe, sparse_safe, 0, 2147483647)
        sparse_convert, sparse_ratio = convert, ratio
        return sparse_convert, sparse_ratio, sparse_safe
    end
    cjson.new = new
    return cjson
end

return new()
