-- MessagePack as the library that Redis carries packs it: the shortest form of a number, at most 16 levels of tables.

local error, next, pcall, select, type, unpack = error, next, pcall, select, type, unpack
local byte, char, find, format, sub = string.byte, string.char, string.find, string.format, string.sub
local concat, floor, frexp, ldexp, huge = table.concat, math.floor, math.frexp, math.ldexp, math.huge

local MAX_NESTING = 16

local function fail(text) error(text, 0) end

-- numbers, big end first -------------------------------------------------------------------------------------

local function unsigned_bytes(number, size)
    local bytes = {}
    for at = size, 1, -1 do
        bytes[at] = char(number % 256)
        number = floor(number / 256)
    end
    return concat(bytes)
end

-- 2^64 plus a small negative number is no double, so the halves are made apart.
local function signed_bytes(number, size)
    if size < 8 then return unsigned_bytes(number % 256 ^ size, size) end
    local high = floor(number / 2 ^ 32)
    return unsigned_bytes(high % 2 ^ 32, 4) .. unsigned_bytes(number - high * 2 ^ 32, 4)
end

-- The sign and exponent, then the fraction, of an IEEE 754 number; nil if it does not fit without loss.
local function float_parts(number, exponent_bits, fraction_bits)
    local bias = 2 ^ (exponent_bits - 1) - 1
    local negative = find(format("%g", number), "-", 1, true) == 1 -- which sees the sign of 0 and of NaN too
    local sign = negative and 2 ^ exponent_bits or 0
    if number ~= number then return sign + 2 * bias + 1, 2 ^ (fraction_bits - 1) end
    if number < 0 then number = -number end
    if number == huge then return sign + 2 * bias + 1, 0 end
    if number == 0 then return sign, 0 end
    local fraction, exponent = frexp(number)
    exponent = exponent - 1 + bias
    if exponent > 2 * bias then return nil end
    if exponent < 1 then -- subnormal
        fraction, exponent = ldexp(fraction, exponent + fraction_bits), 0
    else
        fraction = ldexp(fraction * 2 - 1, fraction_bits)
    end
    if floor(fraction) ~= fraction then return nil end
    return sign + exponent, fraction
end

local function float_bytes(number)
    local exponent, fraction = float_parts(number, 8, 23)
    if not exponent then return nil end
    return unsigned_bytes(exponent * 2 ^ 23 + fraction, 4)
end

local function double_bytes(number)
    local exponent, fraction = float_parts(number, 11, 52)
    local high = floor(fraction / 2 ^ 32)
    return unsigned_bytes(exponent * 2 ^ 20 + high, 4) .. unsigned_bytes(fraction - high * 2 ^ 32, 4)
end

local function unsigned_from(bytes)
    local number = 0
    for at = 1, #bytes do number = number * 256 + byte(bytes, at) end
    return number
end

local function unsigned_64_from(bytes)
    return unsigned_from(sub(bytes, 1, 4)) * 2 ^ 32 + unsigned_from(sub(bytes, 5))
end

local function signed_from(bytes)
    local high = unsigned_from(sub(bytes, 1, 4))
    if high >= 256 ^ #bytes / 2 or (#bytes == 8 and high >= 2 ^ 31) then
        if #bytes == 8 then return (high - 2 ^ 32) * 2 ^ 32 + unsigned_from(sub(bytes, 5)) end
        return high - 256 ^ #bytes
    end
    return #bytes == 8 and unsigned_64_from(bytes) or high
end

local function float_from_parts(sign, exponent, fraction, exponent_bits, fraction_bits)
    local bias = 2 ^ (exponent_bits - 1) - 1
    local value
    if exponent == 2 * bias + 1 then
        value = fraction == 0 and huge or 0 / 0
    elseif exponent == 0 then
        value = ldexp(fraction, 1 - bias - fraction_bits)
    else
        value = ldexp(fraction + 2 ^ fraction_bits, exponent - bias - fraction_bits)
    end
    return sign == 1 and -value or value
end

local function float_from(bytes)
    local word = unsigned_from(bytes)
    local top = floor(word / 2 ^ 23)
    return float_from_parts(floor(top / 2 ^ 8), top % 2 ^ 8, word % 2 ^ 23, 8, 23)
end

local function double_from(bytes)
    local high = unsigned_from(sub(bytes, 1, 4))
    local top = floor(high / 2 ^ 20)
    return float_from_parts(
        floor(top / 2 ^ 11), top % 2 ^ 11, high % 2 ^ 20 * 2 ^ 32 + unsigned_from(sub(bytes, 5)), 11, 52
    )
end

-- packing -----------------------------------------------------------------------------------------------------

local function integer(number)
    if number >= 0 then
        if number <= 127 then return char(number) end
        if number <= 0xff then return "\204" .. char(number) end
        if number <= 0xffff then return "\205" .. unsigned_bytes(number, 2) end
        if number <= 0xffffffff then return "\206" .. unsigned_bytes(number, 4) end
        return "\207" .. unsigned_bytes(number, 8)
    end
    if number >= -32 then return char(256 + number) end
    if number >= -128 then return "\208" .. char(256 + number) end
    if number >= -32768 then return "\209" .. signed_bytes(number, 2) end
    if number >= -2147483648 then return "\210" .. signed_bytes(number, 4) end
    return "\211" .. signed_bytes(number, 8)
end

local function number_bytes(number)
    if floor(number) == number and number >= -2 ^ 63 and number < 2 ^ 63 then return integer(number) end
    local short = float_bytes(number)
    if number == number and short then return "\202" .. short end
    return "\203" .. double_bytes(number)
end

local function header(size, small, small_limit, marks)
    if size < small_limit then return char(small + size) end
    if marks[1] and size <= 0xff then return char(marks[1], size) end
    if size <= 0xffff then return char(marks[2]) .. unsigned_bytes(size, 2) end
    return char(marks[3]) .. unsigned_bytes(size, 4)
end

-- The length of an array (no gaps, nothing else in it) and how many entries there are in all.
local function shape(items)
    local longest, count = 0, 0
    local array = true
    for key in next, items do
        if type(key) ~= "number" or key < 1 or floor(key) ~= key then
            array = false
        elseif key > longest then
            longest = key
        end
        count = count + 1
    end
    return array and longest == count, count
end

local put

local function put_table(items, pieces, depth)
    local array, count = shape(items)
    if array then
        pieces[#pieces + 1] = header(count, 0x90, 16, {nil, 0xdc, 0xdd})
        for at = 1, count do put(items[at], pieces, depth) end
        return
    end
    pieces[#pieces + 1] = header(count, 0x80, 16, {nil, 0xde, 0xdf})
    for key, value in next, items do
        put(key, pieces, depth)
        put(value, pieces, depth)
    end
end

function put(value, pieces, depth)
    local kind = type(value)
    if kind == "string" then
        pieces[#pieces + 1] = header(#value, 0xa0, 32, {0xd9, 0xda, 0xdb})
        pieces[#pieces + 1] = value
    elseif kind == "number" then
        pieces[#pieces + 1] = number_bytes(value)
    elseif kind == "boolean" then
        pieces[#pieces + 1] = value and "\195" or "\194"
    elseif kind == "table" and depth < MAX_NESTING then
        put_table(value, pieces, depth + 1)
    else
        pieces[#pieces + 1] = "\192"
    end
end

local function pack(...)
    local count = select("#", ...)
    if count == 0 then error("bad argument #0 to 'pack' (MessagePack pack needs input.)", 2) end
    local pieces = {}
    for at = 1, count do put((select(at, ...)), pieces, 0) end
    return concat(pieces)
end

-- unpacking ---------------------------------------------------------------------------------------------------

local function take(data, at, size)
    if at + size - 1 > #data then fail("Missing bytes in input.") end
    return sub(data, at, at + size - 1), at + size
end

local function number_at(data, at, read, size)
    local bytes, after = take(data, at, size)
    return read(bytes), after
end

local get

local function array_of(data, at, count)
    local array = {}
    for place = 1, count do array[place], at = get(data, at) end
    return array, at
end

local function map_of(data, at, count)
    local map = {}
    for _ = 1, count do
        local key, value
        key, at = get(data, at)
        value, at = get(data, at)
        if key == nil or key ~= key then fail("Bad data format in input.") end
        map[key] = value
    end
    return map, at
end

local numbers = {
    [0xca] = {float_from, 4}, [0xcb] = {double_from, 8},
    [0xcc] = {unsigned_from, 1}, [0xcd] = {unsigned_from, 2}, [0xce] = {unsigned_from, 4},
    [0xcf] = {unsigned_64_from, 8},
    [0xd0] = {signed_from, 1}, [0xd1] = {signed_from, 2}, [0xd2] = {signed_from, 4}, [0xd3] = {signed_from, 8},
}
local sized = {
    [0xc4] = {1, take}, [0xc5] = {2, take}, [0xc6] = {4, take},
    [0xd9] = {1, take}, [0xda] = {2, take}, [0xdb] = {4, take},
    [0xdc] = {2, array_of}, [0xdd] = {4, array_of}, [0xde] = {2, map_of}, [0xdf] = {4, map_of},
}

function get(data, at)
    local mark = byte(data, at)
    if not mark then fail("Missing bytes in input.") end
    at = at + 1
    if mark < 0x80 then return mark, at end
    if mark >= 0xe0 then return mark - 256, at end
    if mark < 0x90 then return map_of(data, at, mark - 0x80) end
    if mark < 0xa0 then return array_of(data, at, mark - 0x90) end
    if mark < 0xc0 then return take(data, at, mark - 0xa0) end
    if mark == 0xc0 then return nil, at end
    if mark == 0xc2 or mark == 0xc3 then return mark == 0xc3, at end
    local form = numbers[mark]
    if form then return number_at(data, at, form[1], form[2]) end
    form = sized[mark]
    if not form then fail("Bad data format in input.") end
    local size
    size, at = number_at(data, at, unsigned_from, form[1])
    return form[2](data, at, size)
end

local function all(data, at, limit)
    local values, count = {}, 0
    while at <= #data and count < limit do
        count = count + 1
        values[count], at = get(data, at)
    end
    return values, count, at
end

-- A number is data too: C takes its text.
local function checked_data(name, data)
    if type(data) == "number" then return data .. "" end
    if type(data) == "string" then return data end
    error("bad argument #1 to '" .. name .. "' (string expected, got " .. type(data) .. ")", 3)
end

local function unpack_all(data)
    data = checked_data("unpack", data)
    local ok, values, count = pcall(all, data, 1, 2 ^ 31)
    if not ok then error(values, 2) end
    return unpack(values, 1, count)
end

-- The offset to go on from (-1 at the end), then the values.
local function unpack_some(name, data, limit, offset)
    data = checked_data(name, data)
    offset = offset or 0
    if offset < 0 or limit < 0 then
        error("Invalid request to unpack with offset of " .. offset .. " and limit of " .. #data .. ".", 3)
    elseif offset > #data then
        error("Start offset " .. offset .. " greater than input length " .. #data .. ".", 3)
    end
    local ok, values, count, at = pcall(all, data, offset + 1, limit)
    if not ok then error(values, 3) end
    return at > #data and -1 or at - 1, unpack(values, 1, count)
end

local function unpack_one(data, offset)
    local after, value = unpack_some("unpack_one", data, 1, offset)
    if value == nil then return after end
    return after, value
end

-- Not a tail call: an error must find the script two frames up.
local function same(...) return ... end

local function unpack_limit(data, limit, offset) return same(unpack_some("unpack_limit", data, limit or 0, offset)) end

return {
    pack = pack, unpack = unpack_all, unpack_one = unpack_one, unpack_limit = unpack_limit, _NAME = "cmsgpack",
    _VERSION = "lua-cmsgpack 0.4.0", _DESCRIPTION = "MessagePack C implementation for Lua",
}
